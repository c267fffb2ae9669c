#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// router_topk: a group for a row. An expert's rank is the number of experts before it, so ranks are
// distinct and no order of work shows. Local memory: 4 bytes an expert and a choice.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 256;
layout(constant_id = 2) const uint CHOICES = 8;
layout(constant_id = 3) const uint HAS_ALLOWED = 0;
layout(push_constant) uniform Push
{
    uint params_at, logits_at, allowed_at, ids_at, weights_at, row_segment, E, R;
};
READS(0, uint, params)
READS(1, float, logits)
READS(2, uint, allowed)
WRITES(3, int, ids)
WRITES(4, float, weights)
#define KEYS EXPERTS
#include "rank.glsl"
#include "table.glsl"
#include "route.glsl"

void main()
{
    uint row = gl_WorkGroupID.x;
    if (row >= table_rows())
        return;
    uint own = logits_at + row * E, mask = table(row_segment + row) * E;
    for (uint e = LID; e < E; e += ITEMS) {
        bool may = true;
        if (HAS_ALLOWED != 0u)
            may = byte_of(allowed[allowed_at + (mask + e) / 4u], mask + e) != 0u;
        keys[e] = may ? key_of(logits[own + e]) : NO_KEY;
    }
    route(row);
}
