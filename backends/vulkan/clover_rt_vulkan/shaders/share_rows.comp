#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// coreset, first part: each row's R largest shares, a group a row. Local memory: 4 bytes an expert.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 256;
layout(push_constant) uniform Push
{
    uint params_at, logits_at, shares_at, E, R;
};
READS(0, uint, params)
READS(1, float, logits)
WRITES(2, float, shares)
#define KEYS EXPERTS
#include "rank.glsl"
#include "reduce.glsl"
#include "table.glsl"

void main()
{
    uint row = gl_WorkGroupID.x;
    if (row >= table_rows())
        return;
    uint own = logits_at + row * E;
    float top = MINUS_INFINITY;
    for (uint e = LID; e < E; e += ITEMS) {
        keys[e] = key_of(logits[own + e]);
        top = max(top, logits[own + e]);
    }
    top = max_of_items(top);
    float sum = 0.0;
    for (uint e = LID; e < E; e += ITEMS)
        sum += exp_of(logits[own + e] - top);
    float total = sum_of_items(sum);
    for (uint e = LID; e < E; e += ITEMS) {
        bool is_best = rank_of(E, e) < R;
        shares[shares_at + row * E + e] = is_best ? exp_of(logits[own + e] - top) / total : 0.0;
    }
}
