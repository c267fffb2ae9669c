#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// confidence_topk: clears the finite flag where a row is not finite, a group a row.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, h_at, picks_at, D;
};
READS(0, uint, params)
READS(1, float, h)
WRITES(2, uint, picks)
#include "table.glsl"

void main()
{
    uint row = gl_WorkGroupID.x;
    if (row >= table_rows())
        return;
    bool all_finite = true;
    for (uint k = LID; k < D; k += ITEMS)
        all_finite = all_finite && is_finite(h[h_at + row * D + k]);
    if (!all_finite)
        atomicAnd(picks[picks_at], 0u);
}
