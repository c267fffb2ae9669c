// coreset: each row's R largest shares go to scratch (one group a row), then a group a segment adds
// them up in row order, sorts the masses and keeps experts until top_p is reached.
// Local memory: 8 bytes an expert.
kernel GROUP_OF(64) void share_rows(global const int *table, global const float *logits,
                                    global float *shares, int E, int R, local uint *keys)
{
    local float room[64];
    int lid = get_local_id(0), row = get_group_id(0);
    int experts = row < table[TABLE_ROWS] ? E : 0;
    global const float *own = logits + (long)row * E;
    float top = -INFINITY;
    for (int e = lid; e < experts; e += 64) {
        keys[e] = key_of(own[e]);
        top = fmax(top, own[e]);
    }
    top = max_of_items(room, top);
    float sum = 0.0f;
    for (int e = lid; e < experts; e += 64)
        sum += exp(own[e] - top);
    float total = sum_of_items(room, sum);
    for (int e = lid; e < experts; e += 64)
        shares[(long)row * E + e] =
            rank_of(keys, experts, e) < R ? exp(own[e] - top) / total : 0.0f;
}

kernel GROUP_OF(64) void coreset(global const int *table, int at_segments,
                                 global const float *shares, global uchar *allowed, int E,
                                 float top_p, local uint *keys, local float *sorted)
{
    local float room[64];
    local int last;
    int lid = get_local_id(0);
    for (int i = get_group_id(0); i < table[TABLE_SEGMENTS]; i += get_num_groups(0)) {
        Segment s = segment_at(table, at_segments, i);
        int is_cut = s.kind == PREVIEW && top_p < 1.0f && s.rows > 0;
        float own = 0.0f;
        for (int e = lid; is_cut && e < E; e += 64) {
            float mass = 0.0f;
            for (int t = 0; t < s.rows; t++)
                mass += shares[(long)(s.row0 + t) * E + e];
            keys[e] = key_of(mass);
            own += mass;
        }
        float total = sum_of_items(room, own);
        for (int e = lid; is_cut && e < E; e += 64) {
            uint bits = keys[e] & 0x80000000u ? keys[e] & 0x7fffffffu : ~keys[e];
            sorted[rank_of(keys, E, e)] = as_float(bits) / total;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid == 0 && is_cut) {
            float before = 0.0f;
            last = 0;
            while (last < E && (last == 0 || before < top_p))
                before += sorted[last++];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int e = lid; e < E; e += 64)
            allowed[(long)i * E + e] = !is_cut || rank_of(keys, E, e) < last;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
