#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// advance: the last J - 1 rows of ring and tape into the ring, an item for a channel of a slot.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, ring_at, tape_u_at, advances, C, J, Q;
};
READS(0, uint, params)
WRITES(1, float, ring)
READS(2, float, tape_u)
#include "table.glsl"

void main()
{
    uint channel = gl_GlobalInvocationID.x;
    if (channel >= C)
        return;
    for (uint i = gl_WorkGroupID.y; i < table_advances(); i += gl_NumWorkGroups.y) {
        uint slot = table(advances + 2u * i), rows = table(advances + 2u * i + 1u);
        uint own = ring_at + slot * (J - 1u) * C + channel;
        // row j comes from a later one, which is not yet overwritten
        for (uint j = 0u; rows > 0u && j < J - 1u; j++) {
            uint from = j + rows;
            if (from < J - 1u)
                ring[own + j * C] = ring[own + from * C];
            else
                ring[own + j * C] =
                    tape_u[tape_u_at + (slot * Q + from - (J - 1u)) * C + channel];
        }
    }
}
