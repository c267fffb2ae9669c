#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// rms_norm: a group for a group of K columns of a row; squares are added in float32, item by item,
// then as a tree. w is offset + the weight.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, x_at, w_at, y_at, K;
    float eps;
};
READS(0, uint, params)
READS(1, float, x)
READS(2, float, w)
WRITES(3, float, y)
#include "reduce.glsl"
#include "table.glsl"

void main()
{
    uint row = gl_WorkGroupID.y;
    if (row >= table_rows())
        return;
    uint at = (row * gl_NumWorkGroups.x + gl_WorkGroupID.x) * K;
    float own = 0.0;
    for (uint k = LID; k < K; k += ITEMS) {
        float number = x[x_at + at + k];
        own = fma(number, number, own);
    }
    float rms = sqrt(sum_of_items(own) / float(K) + eps);
    for (uint k = LID; k < K; k += ITEMS)
        y[y_at + at + k] = x[x_at + at + k] / rms * w[w_at + k];
}
