#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// rope: an item for a number; cos and sin come from the table of angles.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, x_at, angles_at, y_at, segments, row_segment, width, K, r;
};
READS(0, uint, params)
READS(1, float, x)
READS(2, float, angles)
WRITES(3, float, y)
#include "table.glsl"
#include "segment.glsl"

void main()
{
    uint column = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (column >= width || row >= table_rows())
        return;
    Segment s = segment_at(table(row_segment + row));
    uint at = row * width + column, i = column % K;
    float own = x[x_at + at];
    if (i < 2u * r) {
        uint angle = angles_at + ((s.position + row - s.row0) * r + i % r) * 2u;
        float other = i < r ? -x[x_at + at + r] : x[x_at + at - r];
        own = own * angles[angle] + other * angles[angle + 1u];
    }
    y[y_at + at] = own;
}
