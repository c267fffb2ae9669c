#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// expert_gemm: the pairs of each expert cut into tiles of ROWS, so that the grid of the products
// needs no length from the host. Word 0 is the number of tiles; tile i is words 4 + 4 i ..: expert,
// first place in order, rows.
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
layout(push_constant) uniform Push
{
    uint params_at, offsets_at, tiles_at, E;
};
READS(0, uint, params)
READS(1, uint, offsets)
WRITES(2, uint, tiles)
#include "table.glsl"
shared uint found[ITEMS];

void main()
{
    uint each = (E + ITEMS - 1u) / ITEMS, lo = min(LID * each, E), hi = min(lo + each, E);
    // without rows the offsets are not written either
    if (table_rows() == 0u)
        hi = lo;
    uint own = 0u;
    for (uint e = lo; e < hi; e++) {
        uint pairs = offsets[offsets_at + e + 1u] - offsets[offsets_at + e];
        own += (pairs + ROWS - 1u) / ROWS;
    }
    found[LID] = own;
    barrier();
    for (uint step = 1u; step < ITEMS; step *= 2u) {
        uint more = LID >= step ? found[LID - step] : 0u;
        barrier();
        found[LID] += more;
        barrier();
    }
    if (LID == ITEMS - 1u)
        tiles[tiles_at] = found[LID];
    uint at = tiles_at + 4u + 4u * (found[LID] - own);
    for (uint e = lo; e < hi; e++) {
        uint stop = offsets[offsets_at + e + 1u];
        for (uint p = offsets[offsets_at + e]; p < stop; p += ROWS) {
            tiles[at] = e;
            tiles[at + 1u] = p;
            tiles[at + 2u] = min(stop - p, ROWS);
            at += 4u;
        }
    }
}
