#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// gated_norm: a group for a value head of a row; sums as in rms_norm.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, o_at, z_at, w_at, y_at, V;
    float eps;
};
READS(0, uint, params)
READS(1, float, o)
READS(2, float, z)
READS(3, float, w)
WRITES(4, float, y)
#include "reduce.glsl"
#include "table.glsl"

void main()
{
    uint row = gl_WorkGroupID.y;
    if (row >= table_rows())
        return;
    uint at = (row * gl_NumWorkGroups.x + gl_WorkGroupID.x) * V;
    float own = 0.0;
    for (uint v = LID; v < V; v += ITEMS) {
        float number = o[o_at + at + v];
        own = fma(number, number, own);
    }
    float rms = sqrt(sum_of_items(own) / float(V) + eps);
    for (uint v = LID; v < V; v += ITEMS)
        y[y_at + at + v] = o[o_at + at + v] / rms * w[w_at + v] * silu(z[z_at + at + v]);
}
