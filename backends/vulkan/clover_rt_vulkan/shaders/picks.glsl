// The second half of picks_few and picks_many: the logits of a tile, which lie in `logits`
// [row][id], are changed by the response controls; of each row the `top` best, the largest logit
// and the sums of the softmax are kept. Needs PICK_ROWS, the rows of a tile, and `tile_row0`, its
// first in the block.
//
// Scratch beside the best, STATS numbers a row: largest logit, sum e, sum (l - largest) e.
#define IDS 128u
#define BLOCK 32u
#define STATS 3u
#define NO_ID 0x7fffffffu
#define KEYS 128
#include "rank.glsl"
#include "segment.glsl"
shared float logits[PICK_ROWS * 128];
shared float largest[PICK_ROWS];

float ramp(int position, int start, int window)
{
    if (window <= 0)
        return position > start ? 1.0 : 0.0;
    return clamp(float(position - start) / float(window), 0.0, 1.0);
}

float table_number(uint word)
{
    return uintBitsToFloat(table(word));
}

// a logit after the controls of its row, whose record starts at word `row` of the table
float controlled(uint row, uint id, float logit)
{
    uint own = table(row + 1u), record = controls + 32u * own;
    Segment s = segment_at(own);
    uint mask = suppressed[suppressed_at + s.slot * ((vocab + 31u) / 32u) + id / 32u];
    uint seen = counts[counts_at + s.slot * vocab + id];
    bool is_suppressed = ((mask >> (id % 32u)) & 1u) != 0u;
    int count_from = int(table(row + 4u)), position = int(table(row + 2u));
    if (count_from >= 0)
        for (uint i = s.row0 + uint(count_from); i <= table(row); i++)
            seen += uint(table(tokens + i) == id);
    if (seen > 0u) {
        float repetition = table_number(record + 2u);
        logit = logit - float(seen) * table_number(record) - table_number(record + 1u);
        logit = logit < 0.0 ? logit * repetition : logit / repetition;
    }
    for (uint i = 0u; i < table(record + 10u); i++)
        if (table(record + 11u + i) == id)
            logit += table_number(record + 3u) *
                     ramp(position, int(table(record + 4u)), int(table(record + 5u)));
    if (table(row + 3u) != 0u && table(record + 9u) == id)
        logit += table_number(record + 6u) *
                 ramp(position, int(table(record + 7u)), int(table(record + 8u)));
    return is_suppressed || is_minus_infinity(logit) ? MINUS_INFINITY : logit;
}

// rows .. wanted rows of the tile from `tile_row0` of the block on, ids .. of the tile from
// `column0` of the part on
void pick(uint tile_row0, uint rows, uint column0, uint ids)
{
    barrier();
    for (uint i = LID; i < rows * ids; i += ITEMS) {
        uint m = i / ids, id = first + column0 + i % ids, wanted_row = wanted0 + tile_row0 + m;
        float logit = logits[m * IDS + i % ids];
        if (!is_finite(logit))
            atomicAnd(picks[picks_at], 0u);
        // a NaN has no rank, and spoils the whole pass anyhow
        if (is_nan(logit))
            logit = MINUS_INFINITY;
        logit = controlled(wanted + 8u * wanted_row, id, logit);
        logits[m * IDS + i % ids] = logit;
        if (table(wanted + 8u * wanted_row + 5u) == id)
            picks[picks_at + (1u + wanted_row) * (2u * top + 4u) + 2u * top + 2u] =
                floatBitsToUint(logit);
    }
    barrier();
    uint tile = (first + column0) / IDS, most = min(top, IDS);
    for (uint m = 0u; m < rows; m++) {
        uint at = (tile * BLOCK + tile_row0 + m) * most;
        for (uint i = LID; i < IDS; i += ITEMS)
            keys[i] = i < ids ? key_of(logits[m * IDS + i]) : NO_KEY;
        barrier();
        for (uint i = LID; i < IDS; i += ITEMS) {
            uint rank = rank_of(IDS, i);
            if (rank < most) {
                best_ids[best_ids_at + at + rank] = i < ids ? first + column0 + i : NO_ID;
                best[best_at + at + rank] = i < ids ? logits[m * IDS + i] : MINUS_INFINITY;
            }
            if (rank == 0u)
                largest[m] = logits[m * IDS + i];
        }
        barrier();
    }
    for (uint m = LID; m < rows; m += ITEMS) {
        float peak = largest[m], total = 0.0, below = 0.0;
        // where everything is suppressed there is nothing to add
        for (uint i = 0u; i < ids && !is_minus_infinity(peak); i++) {
            float gap = logits[m * IDS + i] - peak, e = exp_of(gap);
            if (e > 0.0) {
                total += e;
                below = fma(gap, e, below);
            }
        }
        uint to = stats_at + STATS * (tile * BLOCK + tile_row0 + m);
        stats[to] = peak;
        stats[to + 1u] = total;
        stats[to + 2u] = below;
    }
}
