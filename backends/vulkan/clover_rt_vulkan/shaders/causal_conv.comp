#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// causal_conv: an item for a channel of a row. J taps, J - 1 rows in a ring; keep_ring moves rings.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint HAS_RIGHT = 1;
layout(push_constant) uniform Push
{
    uint params_at, u_at, taps_at, right_at, ring_at, tape_u_at, y_at, segments, row_segment, C, J,
        Q;
};
READS(0, uint, params)
READS(1, float, u)
READS(2, float, taps)
READS(3, float, right)
READS(4, float, ring)
WRITES(5, float, tape_u)
WRITES(6, float, y)
#include "table.glsl"
#include "segment.glsl"

// raw row `t` of a segment, or of the slot's ring where t is negative; after the rows of the slot's
// commit in this pass, if there is one, for a preview
float raw_at(uint index, Segment s, int t, uint channel)
{
    if (t >= 0)
        return u[u_at + (s.row0 + uint(t)) * C + channel];
    uint back = uint(int(J) - 1 + t);
    if (s.kind == PREVIEW)
        for (uint i = 0u; i < index; i++) {
            Segment c = segment_at(i);
            if (c.kind == COMMIT && c.slot == s.slot) {
                back += c.rows;
                if (back >= J - 1u)
                    return u[u_at + (c.row0 + back - (J - 1u)) * C + channel];
            }
        }
    return ring[ring_at + (s.slot * (J - 1u) + back) * C + channel];
}

void main()
{
    uint channel = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (channel >= C || row >= table_rows())
        return;
    uint index = table(row_segment + row);
    Segment s = segment_at(index);
    uint t = row - s.row0;
    precise float sum = 0.0;
    for (uint j = 0u; j < J; j++)
        sum = fma(taps[taps_at + channel * J + j],
                  raw_at(index, s, int(t + j) - int(J - 1u), channel), sum);
    if (s.kind == PREVIEW && HAS_RIGHT != 0u)
        for (uint d = 1u; d < J && t + d < s.rows; d++)
            sum = fma(right[right_at + channel * (J - 1u) + d - 1u],
                      u[u_at + (row + d) * C + channel], sum);
    y[y_at + row * C + channel] = silu(sum);
    if (s.kind == VERIFY)
        tape_u[tape_u_at + (s.slot * Q + t) * C + channel] = u[u_at + row * C + channel];
}
