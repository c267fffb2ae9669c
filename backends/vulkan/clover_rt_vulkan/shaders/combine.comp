#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// combine: an item for a number of a row; experts are added in slot order.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, y_at, ids_at, weights_at, from_shared_at, shared_gate_at, residual_at, h_at, R,
        D;
};
READS(0, uint, params)
READS(1, float, y)
READS(2, int, ids)
READS(3, float, weights)
READS(4, float, from_shared)
READS(5, float, shared_gate)
READS(6, float, residual)
WRITES(7, float, h)
#include "table.glsl"

void main()
{
    uint column = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (column >= D || row >= table_rows())
        return;
    uint at = row * D + column;
    float sum = from_shared[from_shared_at + at] * sigmoid(shared_gate[shared_gate_at + row]);
    for (uint r = 0u; r < R; r++) {
        uint pair = row * R + r;
        if (ids[ids_at + pair] >= 0)
            sum = fma(weights[weights_at + pair], y[y_at + pair * D + column], sum);
    }
    h[h_at + at] = sum + residual[residual_at + at];
}
