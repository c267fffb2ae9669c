// block_memory: 64 work-items for a preview row and a value head. Keys go in tiles of 64, one a
// work-item; a work-item has COLUMNS columns of the result (V at most 64 * COLUMNS). The softmax
// is rescaled from tile to tile; the history slot is added last. Local memory: q, 2 x 64 numbers.
kernel GROUP_OF(64) void block_memory(
    global const int *table, int at_segments, int at_owner, global const float *qkv,
    global const float *g, global const float *S, global const float *logit_scale,
    global const float *history_bias, global const float *history_c, global float *o, int G, int H,
    int K, int V, local float *q)
{
    local float shares[64], room[64];
    int lid = get_local_id(0), h = get_group_id(0), row = get_group_id(1), head = h / (H / G);
    int is_live = row < table[TABLE_ROWS];
    Segment s = segment_at(table, at_segments, is_live ? table[at_owner + row] : 0);
    is_live = is_live && s.kind == PREVIEW;
    int keys = is_live ? s.rows : 0, depth = is_live ? K : 0;
    long width = 2 * (long)G * K + (long)H * V;
    global const float *own = qkv + row * width + (long)head * K;
    global const float *k = qkv + s.row0 * width + (long)(G + head) * K;
    global const float *v = qkv + s.row0 * width + 2 * (long)G * K + (long)h * V;
    float sum = 0.0f;
    for (int i = lid; i < depth; i += 64)
        sum = fma(own[i], own[i], sum);
    float length = sqrt(sum_of_items(room, sum) + 1e-6f);
    for (int i = lid; i < depth; i += 64)
        q[i] = own[i] / length;
    barrier(CLK_LOCAL_MEM_FENCE);

    float peak = history_bias[h] + history_c[h] * log((float)s.rows / 32.0f);
    float history = 1.0f, total = 0.0f, mixed[COLUMNS];
    for (int c = 0; c < COLUMNS; c++)
        mixed[c] = 0.0f;
    for (int first = 0; first < keys; first += 64) {
        int n = min(64, keys - first);
        float logit = -INFINITY;
        if (lid < n) {
            global const float *key = k + (first + lid) * width;
            float dots = 0.0f, squares = 0.0f;
            for (int i = 0; i < K; i++) {
                dots = fma(q[i], key[i], dots);
                squares = fma(key[i], key[i], squares);
            }
            logit = dots / sqrt(squares + 1e-6f) * logit_scale[h];
        }
        float top = fmax(peak, max_of_items(room, logit)), shrink = exp(peak - top);
        float share = lid < n ? exp(logit - top) : 0.0f;
        shares[lid] = share;
        history *= shrink;
        total = total * shrink + sum_of_items(room, share);
        peak = top;
        for (int c = 0; c < COLUMNS; c++) {
            int column = lid + 64 * c;
            mixed[c] *= shrink;
            if (column < V)
                for (int i = 0; i < n; i++)
                    mixed[c] = fma(shares[i], v[(first + i) * width + column], mixed[c]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    total += history;
    float weight = history * exp(g[(long)row * H + h]) / sqrt((float)K);
    global const float *memory = S + ((long)s.slot * H + h) * K * V;
    for (int c = 0; c < COLUMNS; c++) {
        int column = lid + 64 * c;
        if (column >= V || !is_live)
            continue;
        float read = 0.0f;
        for (int i = 0; i < K; i++)
            read = fma(memory[(long)i * V + column], q[i], read);
        o[(long)row * H * V + (long)h * V + column] = fma(weight, read, mixed[c]) / total;
    }
}
