#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// attend: adds up the splits of a query vector, a group a vector, times the sigmoid of its gate.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HAS_GATE = 1;
layout(push_constant) uniform Push
{
    uint params_at, parts_at, gate_at, y_at, K, splits;
};
READS(0, uint, params)
READS(1, float, parts)
READS(2, float, gate)
WRITES(3, float, y)
#include "table.glsl"

void main()
{
    uint row = gl_WorkGroupID.y;
    if (row >= table_rows())
        return;
    uint vector = row * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint own = parts_at + vector * splits * (K + 2u);
    float top = MINUS_INFINITY;
    for (uint i = 0u; i < splits; i++)
        top = max(top, parts[own + i * (K + 2u) + K]);
    for (uint column = LID; column < K; column += ITEMS) {
        float sum = 0.0, total = 0.0;
        for (uint i = 0u; i < splits; i++) {
            uint part = own + i * (K + 2u);
            float weight = exp_of(parts[part + K] - top);
            sum = fma(weight, parts[part + column], sum);
            total = fma(weight, parts[part + K + 1u], total);
        }
        uint to = vector * K + column;
        y[y_at + to] = HAS_GATE != 0u ? sum / total * sigmoid(gate[gate_at + to]) : sum / total;
    }
}
