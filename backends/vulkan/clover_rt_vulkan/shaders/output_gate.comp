#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// output_gate: an item for a number.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, o_at, gate_at, y_at, N;
};
READS(0, uint, params)
READS(1, float, o)
READS(2, float, gate)
WRITES(3, float, y)
#include "table.glsl"

void main()
{
    uint n = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (n >= N || row >= table_rows())
        return;
    uint at = row * N + n;
    y[y_at + at] = o[o_at + at] * sigmoid(gate[gate_at + at]);
}
