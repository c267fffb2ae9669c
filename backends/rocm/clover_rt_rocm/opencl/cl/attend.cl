// attend: 128 work-items for `rows_each` rows, up to VECTORS query vectors of one KV head, and one
// of `splits` parts of the keys; the vectors share every key and value that is read.
//
// Keys go in tiles of 128, one a work-item; a work-item has COLUMNS columns of the result (K at
// most 128 * COLUMNS). The softmax is rescaled from tile to tile, in float32. With one split the
// result goes to y, else to `parts` (K numbers, peak, total), which `merge_splits` adds up.
// Local memory: VECTORS * (K + 128 + 3) numbers and 1 KiB.
#define TILE 128

// four numbers of a key's or value's row, of an operand or of a pool
float4 four_of(global const float *operand, global const Kv *pool, long at, int is_own)
{
    if (is_own) {
        float4 x = vload4(0, operand + at);
        return (float4)(ROUND_KV(x.s0), ROUND_KV(x.s1), ROUND_KV(x.s2), ROUND_KV(x.s3));
    }
#ifdef KV_BF16
    return as_float4(convert_uint4(vload4(0, pool + at)) << (uint4)(16u));
#else
    return vload4(0, pool + at);
#endif
}

float one_of(global const float *operand, global const Kv *pool, long at, int is_own)
{
    return is_own ? ROUND_KV(operand[at]) : FROM_KV(pool[at]);
}

kernel GROUP_OF(TILE) void attend(
    global const int *table, int at_segments, int at_owner, global const float *q,
    global const float *k, global const float *v, global const int *page_table,
    global const Kv *k_pool, global const Kv *v_pool, global float *y, global float *parts, int G,
    int each, int K, int slot_pages, int rows_each, int heads_each, int splits, local float *qs)
{
    local float logits[VECTORS * TILE], peaks[VECTORS], totals[VECTORS], shrinks[VECTORS];
    // where the tile's keys lie; rows of the operands as -1 - place
    local long places[TILE];
    int lid = get_local_id(0), blocks = get_num_groups(1) / G;
    int group = get_group_id(1) / blocks, head0 = get_group_id(1) % blocks * heads_each;
    int heads = min(heads_each, each - head0), split = get_group_id(2);
    int start = get_group_id(0) * rows_each, stop = min(start + rows_each, table[TABLE_ROWS]);
    long width = (long)G * each * K;
    float scale = 1.0f / sqrt((float)K);
    for (int row = start; row < stop;) {
        Segment s = segment_at(table, at_segments, table[at_owner + row]);
        int rows = min(stop, s.row0 + s.rows) - row, vectors = rows * heads;
        // a causal row sees itself and what is before it
        int seen = s.kind == PREVIEW ? s.rows : row - s.row0 + 1;
        int step = s.kind == PREVIEW ? 0 : 1;
        int keys = s.position + seen + step * (rows - 1), tiles = (keys + TILE - 1) / TILE;
        int share = (tiles + splits - 1) / splits;
        for (int i = lid; i < VECTORS * K; i += TILE) {
            int m = i / K;
            long head = (long)group * each + head0 + m % heads;
            qs[i] = m < vectors ? q[(row + m / heads) * width + head * K + i % K] * scale : 0.0f;
        }
        if (lid < VECTORS) {
            peaks[lid] = -INFINITY;
            totals[lid] = 0.0f;
        }
        float mixed[VECTORS * COLUMNS];
        for (int i = 0; i < VECTORS * COLUMNS; i++)
            mixed[i] = 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int tile = split * share; tile < min(tiles, (split + 1) * share); tile++) {
            int key = tile * TILE + lid, is_own = key >= s.position;
            float dots[VECTORS];
            for (int m = 0; m < VECTORS; m++)
                dots[m] = 0.0f;
            if (key < keys) {
                long place = is_own ? s.row0 + key - s.position
                                    : pool_row(page_table, slot_pages, s.slot, key);
                places[lid] = is_own ? -1 - place : place;
                long at = place * G * K + group * K;
                int i = 0;
                for (; i + 4 <= K; i += 4) {
                    float4 x = four_of(k, k_pool, at + i, is_own);
                    for (int m = 0; m < VECTORS; m++) {
                        float4 w = vload4(0, qs + m * K + i);
                        dots[m] = fma(x.s0, w.s0, dots[m]);
                        dots[m] = fma(x.s1, w.s1, dots[m]);
                        dots[m] = fma(x.s2, w.s2, dots[m]);
                        dots[m] = fma(x.s3, w.s3, dots[m]);
                    }
                }
                for (; i < K; i++) {
                    float x = one_of(k, k_pool, at + i, is_own);
                    for (int m = 0; m < VECTORS; m++)
                        dots[m] = fma(x, qs[m * K + i], dots[m]);
                }
            }
            for (int m = 0; m < VECTORS; m++) {
                int is_seen = key < s.position + seen + step * (m / heads) && m < vectors;
                logits[m * TILE + lid] = is_seen ? dots[m] : -INFINITY;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            if (lid < VECTORS) {
                float top = peaks[lid];
                for (int i = 0; i < TILE; i++)
                    top = fmax(top, logits[lid * TILE + i]);
                shrinks[lid] = top == -INFINITY ? 1.0f : exp(peaks[lid] - top);
                peaks[lid] = top;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int m = 0; m < VECTORS; m++) {
                float logit = logits[m * TILE + lid];
                logits[m * TILE + lid] = logit == -INFINITY ? 0.0f : exp(logit - peaks[m]);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            if (lid < VECTORS) {
                float sum = 0.0f;
                for (int i = 0; i < TILE; i++)
                    sum += logits[lid * TILE + i];
                totals[lid] = totals[lid] * shrinks[lid] + sum;
            }
            // nobody reads the totals yet, but PoCL 3.0 loses them without this
            barrier(CLK_LOCAL_MEM_FENCE);
            int count = min(TILE, keys - tile * TILE);
            for (int c = 0; c < COLUMNS; c++) {
                int column = lid + TILE * c;
                if (column >= K)
                    continue;
                for (int m = 0; m < VECTORS; m++)
                    mixed[m * COLUMNS + c] *= shrinks[m];
                for (int i = 0; i < count; i++) {
                    long place = places[i];
                    int own = place < 0;
                    long at = (own ? -1 - place : place) * G * K + group * K + column;
                    float x = one_of(v, v_pool, at, own);
                    for (int m = 0; m < VECTORS; m++)
                        mixed[m * COLUMNS + c] =
                            fma(logits[m * TILE + i], x, mixed[m * COLUMNS + c]);
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        for (int m = 0; m < VECTORS; m++) {
            if (m >= vectors)
                continue;
            long head = (long)group * each + head0 + m % heads, at = row + m / heads;
            if (splits == 1) {
                for (int c = 0; c < COLUMNS; c++)
                    if (lid + TILE * c < K)
                        y[at * width + head * K + lid + TILE * c] =
                            mixed[m * COLUMNS + c] / totals[m];
                continue;
            }
            global float *part = parts + ((at * G * each + head) * splits + split) * (K + 2);
            for (int c = 0; c < COLUMNS; c++)
                if (lid + TILE * c < K)
                    part[lid + TILE * c] = mixed[m * COLUMNS + c];
            if (lid == 0) {
                part[K] = peaks[m];
                part[K + 1] = totals[m];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        row += rows;
    }
}

kernel GROUP_OF(64) void merge_splits(global const int *table, global const float *parts,
                                      global float *y, int K, int splits)
{
    int lid = get_local_id(0), head = get_group_id(0), row = get_group_id(1);
    if (row >= table[TABLE_ROWS])
        return;
    long vector = (long)row * get_num_groups(0) + head;
    global const float *own = parts + vector * splits * (K + 2);
    float top = -INFINITY;
    for (int i = 0; i < splits; i++)
        top = fmax(top, own[(long)i * (K + 2) + K]);
    for (int column = lid; column < K; column += 64) {
        float sum = 0.0f, total = 0.0f;
        for (int i = 0; i < splits; i++) {
            global const float *part = own + (long)i * (K + 2);
            float weight = exp(part[K] - top);
            sum = fma(weight, part[column], sum);
            total = fma(weight, part[K + 1], total);
        }
        y[vector * K + column] = sum / total;
    }
}
