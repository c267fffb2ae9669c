// confidence_topk: a group of work-items makes the logits of up to 32 wanted rows for 128 ids,
// changes them by the response controls and keeps of each row its `top` best, the largest logit and
// the sums of the softmax; a second kernel joins the tiles. Logits stay in local memory.
//
// Wanted rows go in blocks: the launches of a block have its first row as `wanted0`. Launched once
// a part of the head, whose first id is a multiple of 128. Forms and sums: product.cl.
// Local memory: 29 KiB in the many-row form, 3 to 7 KiB in the few-row form.
#define IDS 128
#ifdef FEW_ROWS
#define TILE_ROWS FEW_ROWS
#define TILE_ITEMS FEW_ITEMS
#else
#define TILE_ROWS MANY_ROWS
#define TILE_ITEMS MANY_ITEMS
#endif
// numbers of a tile's row in scratch beside the best: largest logit, sum e, sum (l - largest) e
#define STATS 3
#define NO_ID 0x7fffffff

kernel GROUP_OF(64) void start_picks(global int *picks, int words)
{
    for (int i = get_local_id(0); i < words; i += 64)
        picks[i] = i == 0;
}

kernel GROUP_OF(64) void check_rows(global const int *table, global const float *h,
                                    global int *picks, int D)
{
    int row = get_group_id(0), is_finite = 1;
    if (row >= table[TABLE_ROWS])
        return;
    for (int k = get_local_id(0); k < D; k += 64)
        is_finite &= isfinite(h[(long)row * D + k]) != 0;
    if (!is_finite)
        atomic_and(picks, 0);
}

float ramp(int position, int start, int window)
{
    if (window <= 0)
        return position > start ? 1.0f : 0.0f;
    return clamp((float)(position - start) / (float)window, 0.0f, 1.0f);
}

// a logit after the controls of its row
float controlled(global const int *table, int at_segments, int at_controls, int at_tokens,
                 global const int *wanted, global const int *counts, global const uint *suppressed,
                 int vocab, int id, float logit)
{
    Segment s = segment_at(table, at_segments, wanted[1]);
    global const int *record = table + at_controls + 32 * wanted[1];
    int words = (vocab + 31) / 32, seen = counts[(long)s.slot * vocab + id];
    if (suppressed[(long)s.slot * words + id / 32] >> (id % 32) & 1u)
        logit = -INFINITY;
    if (wanted[4] >= 0)
        for (int row = s.row0 + wanted[4]; row <= wanted[0]; row++)
            seen += table[at_tokens + row] == id;
    if (seen > 0) {
        float repetition = as_float(record[2]);
        logit = logit - seen * as_float(record[0]) - as_float(record[1]);
        logit = logit < 0.0f ? logit * repetition : logit / repetition;
    }
    for (int i = 0; i < record[10]; i++)
        if (record[11 + i] == id)
            logit += as_float(record[3]) * ramp(wanted[2], record[4], record[5]);
    if (wanted[3] && record[9] == id)
        logit += as_float(record[6]) * ramp(wanted[2], record[7], record[8]);
    return logit;
}

kernel GROUP_OF(TILE_ITEMS) void tile_picks(
    global const int *table, int at_segments, int at_controls, int at_wanted, int at_tokens,
    global const float *h, WEIGHT(head), global const int *counts, global const uint *suppressed,
    global int *picks, global int *best_ids, global float *best, global float *stats, int D,
    int vocab, int first, int count, int wanted0, int top)
{
    local float logits[TILE_ROWS * IDS], bounds[TILE_ROWS];
    local uint keys[IDS];
#ifdef FEW_ROWS
    local float room[FEW_ROOM];
#else
    local RowTile rows_tile;
    local ColumnTile columns_tile;
#endif
    int lid = get_local_id(0), wanted1 = wanted0 + get_group_id(1) * TILE_ROWS;
    int rows = max(min(table[TABLE_WANTED] - wanted1, TILE_ROWS), 0);
    int column0 = get_group_id(0) * IDS, tile = first / IDS + get_group_id(0);
    int ids = rows ? min(count - column0, IDS) : 0;
    global const int *wanted = table + at_wanted + 8 * wanted1;
#ifdef FEW_ROWS
    global const float *from[FEW_ROWS];
    for (int m = 0; m < FEW_ROWS; m++)
        from[m] = m < rows ? h + (long)wanted[8 * m] * D : 0;
    for (int c = 0; c < ids; c += FEW_COLUMNS) {
        float total = few_head(room, GIVEN(head), column0 + c, ids - c, D, from, rows);
        if (lid / 16 < TILE_ROWS)
            logits[lid / 16 * IDS + c + lid % 16] = total;
    }
#else
    int own = lid % MANY_ROWS;
    global const float *mine = own < rows ? h + (long)wanted[8 * own] * D : 0;
    for (int c = 0; c < ids; c += MANY_COLUMNS) {
        float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
        for (int k = 0; k < D; k += DEPTH) {
            stage_rows(&rows_tile, mine, k, D);
            stage_head(GIVEN(head), column0 + c, ids - c, D, k, &columns_tile);
            barrier(CLK_LOCAL_MEM_FENCE);
            add_tile(&rows_tile, &columns_tile, sums);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        for (int i = 0; i < 4; i++)
            vstore4(sums[i], 0, logits + (lid / 16 * 4 + i) * IDS + c + lid % 16 * 4);
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = lid; i < rows * ids; i += TILE_ITEMS) {
        int m = i / ids, id = first + column0 + i % ids;
        float logit = logits[m * IDS + i % ids];
        if (!isfinite(logit))
            atomic_and(picks, 0);
        // a NaN has no rank, and spoils the whole pass anyhow
        logit = isnan(logit) ? -INFINITY : logit;
        logit = controlled(table, at_segments, at_controls, at_tokens, wanted + 8 * m, counts,
                           suppressed, vocab, id, logit);
        logits[m * IDS + i % ids] = logit;
        if (wanted[8 * m + 5] == id)
            picks[(long)(1 + wanted1 + m) * (2 * top + 4) + 2 * top + 2] = as_int(logit);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    int most = min(top, IDS);
    for (int m = 0; m < rows; m++) {
        // rows of the block of this launch, tile by tile
        long at = (long)tile * 32 + get_group_id(1) * TILE_ROWS + m;
        for (int i = lid; i < IDS; i += TILE_ITEMS)
            keys[i] = i < ids ? key_of(logits[m * IDS + i]) : NO_KEY;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = lid; i < IDS; i += TILE_ITEMS) {
            int rank = rank_of(keys, IDS, i);
            if (rank < most) {
                best_ids[at * most + rank] = i < ids ? first + column0 + i : NO_ID;
                best[at * most + rank] = i < ids ? logits[m * IDS + i] : -INFINITY;
            }
            if (rank == 0)
                bounds[m] = logits[m * IDS + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int m = lid; m < rows; m += TILE_ITEMS) {
        float peak = bounds[m], total = 0.0f, below = 0.0f;
        for (int i = 0; i < ids; i++) {
            float gap = logits[m * IDS + i] - peak, e = exp(gap);
            if (e > 0.0f) {
                total += e;
                below = fma(gap, e, below);
            }
        }
        global float *to = stats + STATS * ((long)tile * 32 + get_group_id(1) * TILE_ROWS + m);
        to[0] = peak;
        to[1] = total;
        to[2] = below;
    }
}

// joins the tiles of a wanted row: `cursors` has how many of each tile's best are taken. A
// work-item has every 64th tile; in each of `top` rounds the best of their heads is taken.
kernel GROUP_OF(64) void join_picks(global const int *table, int at_wanted, global int *picks,
                                    global const int *best_ids, global const float *best,
                                    global const float *stats, int tiles, int wanted0, int top,
                                    local uchar *cursors)
{
    local float room[64];
    local uint keys[64];
    local int ids[64];
    int lid = get_local_id(0), block_row = get_group_id(0), row = wanted0 + block_row;
    int is_live = row < table[TABLE_WANTED], most = min(top, IDS), rounds = is_live ? top : 0;
    tiles = is_live ? tiles : 0;
    float peak = -INFINITY;
    for (int i = lid; i < tiles; i += 64)
        peak = fmax(peak, stats[STATS * ((long)i * 32 + block_row)]);
    peak = max_of_items(room, peak);
    float total = 0.0f, below = 0.0f;
    for (int i = lid; i < tiles; i += 64) {
        global const float *own = stats + STATS * ((long)i * 32 + block_row);
        float gap = own[0] - peak, shrink = exp(gap);
        if (shrink > 0.0f) {
            total = fma(shrink, own[1], total);
            below = fma(shrink, fma(gap, own[1], own[2]), below);
        }
        cursors[i] = 0;
    }
    total = sum_of_items(room, total);
    below = sum_of_items(room, below);
    global int *to = picks + (long)(1 + row) * (2 * top + 4);
    for (int taken = 0; taken < rounds; taken++) {
        uint key = NO_KEY;
        int id = NO_ID, from = -1;
        for (int i = lid; i < tiles; i += 64) {
            if (cursors[i] >= most)
                continue;
            long at = ((long)i * 32 + block_row) * most + cursors[i];
            uint other = key_of(best[at]);
            if (other > key || (other == key && best_ids[at] < id)) {
                key = other;
                id = best_ids[at];
                from = i;
            }
        }
        keys[lid] = key;
        ids[lid] = id;
        barrier(CLK_LOCAL_MEM_FENCE);
        int winner = 0;
        for (int i = 1; i < 64; i++)
            if (keys[i] > keys[winner] || (keys[i] == keys[winner] && ids[i] < ids[winner]))
                winner = i;
        if (lid == winner) {
            to[taken] = id;
            to[top + taken] =
                as_int(best[((long)from * 32 + block_row) * most + cursors[from]]);
            cursors[from]++;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid == 0 && is_live) {
        to[2 * top] = as_int(peak + log(total));
        to[2 * top + 1] = as_int(log(total) - below / total);
        if (table[at_wanted + 8 * row + 5] < 0)
            to[2 * top + 2] = 0;
        to[2 * top + 3] = 0;
    }
}
