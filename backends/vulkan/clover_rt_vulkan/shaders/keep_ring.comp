#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// keep_ring: the last J - 1 rows of ring and commit into the ring, an item for a channel.
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

void main()
{
    uint channel = gl_GlobalInvocationID.x;
    if (channel >= C)
        return;
    for (uint i = gl_WorkGroupID.y; i < table_segments(); i += gl_NumWorkGroups.y) {
        Segment s = segment_at(i);
        if (s.kind != COMMIT || s.rows == 0u)
            continue;
        uint own = ring_at + s.slot * (J - 1u) * C + channel;
        // row j comes from a later one, which is not yet overwritten
        for (uint j = 0u; j < J - 1u; j++) {
            uint from = j + s.rows;
            if (from < J - 1u)
                ring[own + j * C] = ring[own + from * C];
            else
                ring[own + j * C] = u[u_at + (s.row0 + from - (J - 1u)) * C + channel];
        }
    }
}
