#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// group_rows: a group for an expert counts the pairs of its own and of lower experts, so that it
// knows where its part starts without waiting for others. Each item has consecutive pairs, so the
// order inside an expert stays. The last group fills the rest with -1.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, ids_at, order_at, offsets_at, E, R;
};
READS(0, uint, params)
READS(1, int, ids)
WRITES(2, int, order)
WRITES(3, uint, offsets)
#include "table.glsl"
shared uint own[ITEMS];
shared uint lower[ITEMS];

void main()
{
    uint expert = gl_WorkGroupID.x;
    uint pairs = table_rows() * R, each = (pairs + ITEMS - 1u) / ITEMS;
    uint lo = min(LID * each, pairs), hi = min(lo + each, pairs);
    uint mine = 0u, before = 0u;
    for (uint p = lo; p < hi; p++) {
        int id = ids[ids_at + p];
        mine += uint(id == int(expert));
        before += uint(id >= 0 && id < int(expert));
    }
    own[LID] = mine;
    lower[LID] = before;
    barrier();
    uint start = 0u, place = 0u, total = 0u;
    for (uint i = 0u; i < ITEMS; i++) {
        start += lower[i];
        place += i < LID ? own[i] : 0u;
        total += own[i];
    }
    place += start;
    for (uint p = lo; p < hi; p++)
        if (ids[ids_at + p] == int(expert))
            order[order_at + place++] = int(p);
    if (LID == 0u) {
        offsets[offsets_at + expert + 1u] = start + total;
        if (expert == 0u)
            offsets[offsets_at] = 0u;
    }
    if (expert == E - 1u)
        for (uint p = start + total + LID; p < pairs; p += ITEMS)
            order[order_at + p] = -1;
}
