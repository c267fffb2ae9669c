#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// keep_ring: the rings of commits, an item for a channel.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, u_at, ring_at, segments, C, J;
};
READS(0, uint, params)
READS(1, float, u)
WRITES(2, float, ring)
#include "table.glsl"
#include "segment.glsl"
#define RAW u

uint raw_start()
{
    return u_at;
}
#include "ring.glsl"

void main()
{
    uint channel = gl_GlobalInvocationID.x;
    if (channel >= C)
        return;
    for (uint i = gl_WorkGroupID.y; i < table_segments(); i += gl_NumWorkGroups.y) {
        Segment s = segment_at(i);
        if (s.kind != COMMIT || s.rows == 0u)
            continue;
        move_ring(s, channel);
    }
}
