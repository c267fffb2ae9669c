#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// advance: the tape's first rows into the memory, as block_scan would have. Sums: scan.glsl.
layout(local_size_x = 64, local_size_x_id = 0, local_size_y = 4) in;
layout(constant_id = 1) const uint KEY = 128;
layout(push_constant) uniform Push
{
    uint params_at, S_at, tape_k_at, tape_v_at, tape_g_at, tape_beta_at, advances, G, H, V, Q;
};
READS(0, uint, params)
WRITES(1, float, S)
READS(2, float, tape_k)
READS(3, float, tape_v)
READS(4, float, tape_g)
READS(5, float, tape_beta)
#include "table.glsl"

// the first row of the slot's tape, the value head, and the column
uint row0, head, column;

float key_number(uint row, uint i)
{
    return tape_k[tape_k_at + ((row0 + row) * G + head / (H / G)) * KEY + i];
}

float value_number(uint row)
{
    return tape_v[tape_v_at + ((row0 + row) * H + head) * V + column];
}

float log_decay(uint row)
{
    return tape_g[tape_g_at + (row0 + row) * H + head];
}

float strength(uint row)
{
    return tape_beta[tape_beta_at + (row0 + row) * H + head];
}
#include "scan.glsl"

void main()
{
    head = gl_WorkGroupID.y;
    column = gl_GlobalInvocationID.x;
    for (uint i = gl_WorkGroupID.z; i < table_advances(); i += gl_NumWorkGroups.z) {
        uint slot = table(advances + 2u * i);
        row0 = slot * Q;
        uint memory = S_at + (slot * H + head) * KEY * V + column;
        scan_rows(table(advances + 2u * i + 1u), memory, true);
    }
}
