#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// confidence_topk: joins the tiles of a wanted row. An item has every ITEMS-th tile, and a cursor a
// tile of how many of its best are taken; in each of `top` rounds the best of the heads is taken.
// Local memory: 4 bytes a tile.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint TILES = 2048;
layout(push_constant) uniform Push
{
    uint params_at, picks_at, best_ids_at, best_at, stats_at, wanted, tiles, wanted0, top;
};
READS(0, uint, params)
WRITES(1, uint, picks)
READS(2, uint, best_ids)
READS(3, float, best)
READS(4, float, stats)
#define KEYS ITEMS
#include "rank.glsl"
#include "reduce.glsl"
#include "table.glsl"
#define BLOCK 32u
#define STATS 3u
#define MOST 128u
#define NO_ID 0x7fffffffu
shared uint cursors[TILES];
shared uint ids[ITEMS];

void main()
{
    uint block_row = gl_WorkGroupID.x, row = wanted0 + block_row, most = min(top, MOST);
    if (row >= table_wanted())
        return;
    float peak = MINUS_INFINITY;
    for (uint i = LID; i < tiles; i += ITEMS)
        peak = max(peak, stats[stats_at + STATS * (i * BLOCK + block_row)]);
    peak = max_of_items(peak);
    float total = 0.0, below = 0.0;
    for (uint i = LID; i < tiles; i += ITEMS) {
        uint own = stats_at + STATS * (i * BLOCK + block_row);
        float gap = stats[own] - peak, shrink = exp_of(gap);
        if (shrink > 0.0) {
            total = fma(shrink, stats[own + 1u], total);
            below = fma(shrink, fma(gap, stats[own + 1u], stats[own + 2u]), below);
        }
        cursors[i] = 0u;
    }
    total = sum_of_items(total);
    below = sum_of_items(below);
    uint to = picks_at + (1u + row) * (2u * top + 4u);
    for (uint taken = 0u; taken < top; taken++) {
        uint key = NO_KEY, id = NO_ID, from = 0u;
        for (uint i = LID; i < tiles; i += ITEMS) {
            if (cursors[i] >= most)
                continue;
            uint at = (i * BLOCK + block_row) * most + cursors[i];
            uint other = key_of(best[best_at + at]), other_id = best_ids[best_ids_at + at];
            if (other > key || (other == key && other_id < id)) {
                key = other;
                id = other_id;
                from = i;
            }
        }
        keys[LID] = key;
        ids[LID] = id;
        barrier();
        uint winner = 0u;
        for (uint i = 1u; i < ITEMS; i++)
            if (keys[i] > keys[winner] || (keys[i] == keys[winner] && ids[i] < ids[winner]))
                winner = i;
        if (LID == winner) {
            picks[to + taken] = id;
            picks[to + top + taken] =
                floatBitsToUint(best[best_at + (from * BLOCK + block_row) * most + cursors[from]]);
            cursors[from]++;
        }
        barrier();
    }
    if (LID == 0u) {
        picks[to + 2u * top] = floatBitsToUint(peak + log_of(total));
        picks[to + 2u * top + 1u] = floatBitsToUint(log_of(total) - below / total);
        if (int(table(wanted + 8u * row + 5u)) < 0)
            picks[to + 2u * top + 2u] = 0u;
        picks[to + 2u * top + 3u] = 0u;
    }
}
