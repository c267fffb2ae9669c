// advance: the tape's first rows into memory and ring, as block_scan and causal_conv would have.
kernel GROUP_OF(64) void advance(
    global const int *table, int at_advances, global float *S, global const float *tape_k,
    global const float *tape_v, global const float *tape_g, global const float *tape_beta, int G,
    int H, int V, int Q)
{
    local float ks[CHUNK * KEY], length[CHUNK];
    int h = get_group_id(1), column = get_global_id(0), head = h / (H / G);
    for (int i = get_group_id(2); i < table[TABLE_ADVANCES]; i += get_num_groups(2)) {
        long slot = table[at_advances + 2 * i], row = slot * Q;
        Rows r = {tape_k + (row * G + head) * KEY, tape_v + (row * H + h) * V,
                  tape_g + row * H + h,            tape_beta + row * H + h,
                  (long)G * KEY,                   (long)H * V,
                  H};
        scan_rows(r, table[at_advances + 2 * i + 1], 0, 0, 0, S + (slot * H + h) * KEY * V, V,
                  column, 1, ks, ks, length);
    }
}

kernel GROUP_OF(64) void advance_ring(global const int *table, int at_advances, global float *ring,
                                      global const float *tape_u, int C, int J, int Q)
{
    int channel = get_global_id(0);
    if (channel >= C)
        return;
    for (int i = get_group_id(1); i < table[TABLE_ADVANCES]; i += get_num_groups(1)) {
        long slot = table[at_advances + 2 * i];
        int rows = table[at_advances + 2 * i + 1];
        global float *own = ring + slot * (J - 1) * C + channel;
        // row j comes from a later one, which is not yet overwritten
        for (int j = 0; rows > 0 && j < J - 1; j++) {
            int from = j + rows;
            own[(long)j * C] = from < J - 1 ? own[(long)from * C]
                                            : tape_u[(slot * Q + from - (J - 1)) * C + channel];
        }
    }
}
