#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// moe: share_rows, coreset and router_topk at once, a group for a row. Each row of a block finds
// the coreset of all its rows, which costs less than dispatches between. Rows of a block go in
// tiles of BLOCK_ROWS: teams of items find what is needed of each to tell its shares, then items
// add up the shares of their experts, in row order. Local memory: 8 bytes an expert and
// ITEMS (4 CHOICES + 8) bytes.
layout(local_size_x = 256, local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 256;
layout(constant_id = 2) const uint CHOICES = 8;
layout(constant_id = 3) const uint HAS_CORESET = 1;
layout(push_constant) uniform Push
{
    uint params_at, logits_at, ids_at, weights_at, segments, row_segment, E, R;
    float top_p;
};
READS(0, uint, params)
READS(1, float, logits)
WRITES(2, int, ids)
WRITES(3, float, weights)
#define KEYS EXPERTS
#include "rank.glsl"
#include "reduce.glsl"
#include "table.glsl"
#include "segment.glsl"
#include "cut.glsl"
#include "route.glsl"
// rows of a tile: ITEMS is a multiple of it
#define BLOCK_ROWS 16u
#define TEAM (ITEMS / BLOCK_ROWS)
shared uint best_room[ITEMS * CHOICES];
shared uint equals_room[ITEMS];
// of each row of the tile: its largest logit, the sum of e^(logit - that), its R-th largest key, how
// many keys are that, and how many of those are among the R
shared float peaks[BLOCK_ROWS];
shared float totals[BLOCK_ROWS];
shared uint leasts[BLOCK_ROWS];
shared uint equals[BLOCK_ROWS];
shared uint wanted_equals[BLOCK_ROWS];

// puts a key into a list of the CHOICES largest, in order
void keep(inout uint best[CHOICES], uint key)
{
    [[unroll]] for (uint i = 0u; i < CHOICES; i++) {
        uint larger = max(best[i], key);
        key = min(best[i], key);
        best[i] = larger;
    }
}

// the logit of row `m` of the tile whose first row is `row`
float logit_at(uint row, uint m, uint e)
{
    return logits[logits_at + (row + m) * E + e];
}

// finds peaks, totals, leasts and equals of `rows` rows from `row` on
void measure(uint row, uint rows)
{
    uint m = LID / TEAM, lane = LID % TEAM;
    uint best[CHOICES];
    [[unroll]] for (uint i = 0u; i < CHOICES; i++)
        best[i] = NO_KEY;
    if (m < rows)
        for (uint e = lane; e < E; e += TEAM)
            keep(best, key_of(logit_at(row, m, e)));
    [[unroll]] for (uint i = 0u; i < CHOICES; i++)
        best_room[i * ITEMS + LID] = best[i];
    barrier();
    if (m < rows && lane == 0u) {
        for (uint other = 1u; other < TEAM; other++)
            [[unroll]] for (uint i = 0u; i < CHOICES; i++)
                keep(best, best_room[i * ITEMS + LID + other]);
        uint least = best[0], above = 0u;
        [[unroll]] for (uint i = 0u; i < CHOICES; i++)
            least = i < R ? best[i] : least;
        [[unroll]] for (uint i = 0u; i < CHOICES; i++)
            above += uint(best[i] > least);
        peaks[m] = number_of(best[0]);
        leasts[m] = least;
        wanted_equals[m] = R - above;
    }
    barrier();
    float sum = 0.0;
    uint same = 0u;
    if (m < rows)
        for (uint e = lane; e < E; e += TEAM) {
            float logit = logit_at(row, m, e);
            sum += exp_of(logit - peaks[m]);
            same += uint(key_of(logit) == leasts[m]);
        }
    items_room[LID] = sum;
    equals_room[LID] = same;
    barrier();
    if (m < rows && lane == 0u) {
        for (uint other = 1u; other < TEAM; other++) {
            sum += items_room[LID + other];
            same += equals_room[LID + other];
        }
        totals[m] = sum;
        equals[m] = same;
    }
    barrier();
}

// what row `m` of the tile gives to the mass of an expert
float share_of(uint row, uint m, uint e)
{
    float logit = logit_at(row, m, e);
    uint key = key_of(logit), least = leasts[m];
    bool is_best = key >= least;
    if (key == least && equals[m] > wanted_equals[m]) {
        // of equal ones those of lower index come first
        uint before = 0u;
        for (uint i = 0u; i < e; i++)
            before += uint(key_of(logit_at(row, m, i)) == least);
        is_best = before < wanted_equals[m];
    }
    return is_best ? exp_of(logit - peaks[m]) / totals[m] : 0.0;
}

void main()
{
    uint row = gl_WorkGroupID.x;
    if (row >= table_rows())
        return;
    Segment s = segment_at(table(row_segment + row));
    bool is_cut = HAS_CORESET != 0u && s.kind == PREVIEW;
    if (is_cut) {
        // `sorted` has the masses until they are sorted
        for (uint e = LID; e < E; e += ITEMS)
            sorted[e] = 0.0;
        for (uint first = 0u; first < s.rows; first += BLOCK_ROWS) {
            uint rows = min(s.rows - first, BLOCK_ROWS);
            measure(s.row0 + first, rows);
            for (uint e = LID; e < E; e += ITEMS)
                for (uint m = 0u; m < rows; m++)
                    sorted[e] += share_of(s.row0 + first, m, e);
            barrier();
        }
        float own = 0.0;
        for (uint e = LID; e < E; e += ITEMS) {
            own += sorted[e];
            keys[e] = key_of(sorted[e]);
        }
        cut(own);
    }
    // the experts of this item that the row may have; ranks are those of all masses
    uint may = 0u;
    for (uint e = LID, i = 0u; e < E; e += ITEMS, i++)
        may |= uint(!is_cut || rank_of(E, e) < kept) << i;
    barrier();
    for (uint e = LID, i = 0u; e < E; e += ITEMS, i++)
        keys[e] = ((may >> i) & 1u) != 0u ? key_of(logits[logits_at + row * E + e]) : NO_KEY;
    route(row);
}
