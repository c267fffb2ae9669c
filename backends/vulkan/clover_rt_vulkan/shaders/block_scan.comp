#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// block_scan: a group for ITEMS columns of a value head's memory and a segment. Previews have no
// rows here; a verify writes its tape and leaves the memory alone. Sums: scan.glsl.
//
// GATED (gdn_scan) is what gdn takes of it: g, beta, z and u are arrays of `projected`, o gets what
// is read out times the norm's weight and the gate, and `sizes` the sum of squares of what is read
// out of the group's columns, by which the product behind it divides. The groups of a segment move
// its ring as well.
layout(local_size_x = 64, local_size_x_id = 0, local_size_y = 4) in;
layout(constant_id = 1) const uint KEY = 128;
READS(0, uint, params)
READS(1, float, qkv)
#ifdef GATED
layout(push_constant) uniform Push
{
    uint params_at, qkv_at, projected_at, norm_at, S_at, tape_k_at, tape_v_at, tape_g_at,
        tape_beta_at, ring_at, o_at, sizes_at, segments, G, H, V, Q, C, J, g_from, beta_from,
        z_from, u_from;
};
READS(2, float, projected)
READS(3, float, norm)
#define g projected
#define g_at (projected_at + g_from)
#define beta projected
#define beta_at (projected_at + beta_from)
WRITES(9, float, ring)
WRITES(10, float, o)
WRITES(11, float, sizes)
#else
layout(push_constant) uniform Push
{
    uint params_at, qkv_at, g_at, beta_at, S_at, tape_k_at, tape_v_at, tape_g_at, tape_beta_at,
        o_at, segments, G, H, V, Q;
};
READS(2, float, g)
READS(3, float, beta)
WRITES(9, float, o)
#endif
WRITES(4, float, S)
WRITES(5, float, tape_k)
WRITES(6, float, tape_v)
WRITES(7, float, tape_g)
WRITES(8, float, tape_beta)
#include "table.glsl"
#include "segment.glsl"

// the first row of the segment, the value head, and the column
uint row0, head, column;

// where the row's queries start; keys and values are behind them
uint row_at(uint row)
{
    return qkv_at + (row0 + row) * (2u * G * KEY + H * V);
}

float query_number(uint row, uint i)
{
    return qkv[row_at(row) + head / (H / G) * KEY + i];
}

float key_number(uint row, uint i)
{
    return qkv[row_at(row) + (G + head / (H / G)) * KEY + i];
}

float value_number(uint row)
{
    return qkv[row_at(row) + 2u * G * KEY + head * V + column];
}

float log_decay(uint row)
{
    return g[g_at + (row0 + row) * H + head];
}

float strength(uint row)
{
    return beta[beta_at + (row0 + row) * H + head];
}

#ifdef GATED
// squares of what is read out, [column][row], of the rows of a chunk
#define CHUNK 8u
shared float out_squares[CHUNK * ITEMS];
#endif

void put(uint row, float x)
{
    uint at = ((row0 + row) * H + head) * V + column;
#ifdef GATED
    out_squares[gl_LocalInvocationID.x * CHUNK + row % CHUNK] = x * x;
    x *= norm[norm_at + column] * silu(projected[projected_at + z_from + at]);
#endif
    o[o_at + at] = x;
}
#ifdef GATED

// called by all items behind each chunk of `rows` rows from `first` on
void end_chunk(uint first, uint rows)
{
    barrier();
    if (LID < rows) {
        float sum = 0.0;
        for (uint i = 0u; i < min(ITEMS, V - gl_WorkGroupID.x * ITEMS); i++)
            sum += out_squares[i * CHUNK + LID];
        uint at = (row0 + first + LID) * H + head;
        sizes[sizes_at + at * gl_NumWorkGroups.x + gl_WorkGroupID.x] = sum;
    }
}
#define RAW projected

uint raw_start()
{
    return projected_at + u_from;
}
#include "ring.glsl"
#endif
#define WITH_Q
#include "scan.glsl"

// row `row` as the tape's row `to` of all slots
void keep(uint row, uint to)
{
    if (column < V && PART == 0u)
        tape_v[tape_v_at + (to * H + head) * V + column] = value_number(row);
    if (gl_WorkGroupID.x > 0u)
        return;
    if (head % (H / G) == 0u)
        for (uint i = LID; i < KEY; i += ALL_ITEMS)
            tape_k[tape_k_at + (to * G + head / (H / G)) * KEY + i] = key_number(row, i);
    if (LID == 0u) {
        tape_g[tape_g_at + to * H + head] = log_decay(row);
        tape_beta[tape_beta_at + to * H + head] = strength(row);
    }
}

void main()
{
    head = gl_WorkGroupID.y;
    column = gl_GlobalInvocationID.x;
    for (uint i = gl_WorkGroupID.z; i < table_segments(); i += gl_NumWorkGroups.z) {
        Segment s = segment_at(i);
        if (s.kind == PREVIEW)
            continue;
        row0 = s.row0;
        uint memory = S_at + (s.slot * H + head) * KEY * V + column;
        scan_rows(s.rows, memory, s.kind == COMMIT);
        if (s.kind == VERIFY)
            for (uint t = 0u; t < s.rows; t++)
                keep(t, s.slot * Q + t);
#ifdef GATED
        uint groups = gl_NumWorkGroups.x * gl_NumWorkGroups.y;
        uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
        if (s.kind == COMMIT && s.rows > 0u)
            for (uint i = group * ALL_ITEMS + LID; i < C; i += groups * ALL_ITEMS)
                move_ring(s, i);
#endif
    }
}
