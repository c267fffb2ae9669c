// block_scan: a group of 64 work-items for 64 columns of a value head's memory and a segment.
// Previews have no rows here; a verify writes its tape and leaves the memory alone. Sums: scan.cl.
kernel GROUP_OF(64) void block_scan(
    global const int *table, int at_segments, global const float *qkv, global const float *g,
    global const float *beta, global float *S, global float *tape_k, global float *tape_v,
    global float *tape_g, global float *tape_beta, global float *o, int G, int H, int V, int Q)
{
    local float ks[CHUNK * KEY], qs[CHUNK * KEY], length[CHUNK];
    int lid = get_local_id(0), h = get_group_id(1), column = get_global_id(0);
    int each = H / G, head = h / each;
    long width = 2 * (long)G * KEY + (long)H * V;
    for (int i = get_group_id(2); i < table[TABLE_SEGMENTS]; i += get_num_groups(2)) {
        Segment s = segment_at(table, at_segments, i);
        int rows = s.kind == PREVIEW ? 0 : s.rows;
        global const float *first = qkv + s.row0 * width;
        global const float *q = first + (long)head * KEY, *k = q + (long)G * KEY;
        global const float *v = first + 2 * (long)G * KEY + (long)h * V;
        long gate = (long)s.row0 * H + h;
        Rows r = {k, v, g + gate, beta + gate, width, width, H};
        scan_rows(r, rows, q, o + (long)s.row0 * H * V + (long)h * V, (long)H * V,
                  S + ((long)s.slot * H + h) * KEY * V, V, column, s.kind == COMMIT, ks, qs,
                  length);
        if (s.kind != VERIFY)
            continue;
        for (long t = 0; t < s.rows; t++) {
            long row = (long)s.slot * Q + t;
            if (column < V)
                tape_v[row * H * V + (long)h * V + column] = v[t * width + column];
            if (get_group_id(0) > 0)
                continue;
            if (h % each == 0)
                for (int c = lid; c < KEY; c += 64)
                    tape_k[row * G * KEY + (long)head * KEY + c] = k[t * width + c];
            if (lid == 0) {
                tape_g[row * H + h] = g[gate + t * H];
                tape_beta[row * H + h] = beta[gate + t * H];
            }
        }
    }
}
