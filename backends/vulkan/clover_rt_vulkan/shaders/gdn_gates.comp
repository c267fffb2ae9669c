#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// gdn_gates: an item for a head of a row. rate is -exp(A_log), from the host.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, a_at, b_at, rate_at, bias_at, g_at, beta_at, H;
};
READS(0, uint, params)
READS(1, float, a)
READS(2, float, b)
READS(3, float, rate)
READS(4, float, bias)
WRITES(5, float, g)
WRITES(6, float, beta)
#include "table.glsl"

void main()
{
    uint h = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (h >= H || row >= table_rows())
        return;
    uint at = row * H + h;
    float x = a[a_at + at] + bias[bias_at + h];
    g[g_at + at] = rate[rate_at + h] * (max(x, 0.0) + log1p_of(exp_of(-abs(x))));
    beta[beta_at + at] = sigmoid(b[b_at + at]);
}
