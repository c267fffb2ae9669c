// causal_conv: one work-item for a channel of a row; then, in a second kernel and so after every
// read, the rings: one work-item for a channel of a commit. J taps, J - 1 rows in a ring.

// raw row `t` of a segment, or of the slot's ring where t is negative; after the rows of the slot's
// commit in this pass, if there is one, for a preview
float raw_at(global const int *table, int at_segments, int index, Segment s, int t,
             global const float *u, global const float *ring, int C, int J, int channel)
{
    if (t >= 0)
        return u[(long)(s.row0 + t) * C + channel];
    int back = J - 1 + t;
    if (s.kind == PREVIEW)
        for (int i = 0; i < index; i++) {
            Segment c = segment_at(table, at_segments, i);
            if (c.kind == COMMIT && c.slot == s.slot) {
                back += c.rows;
                if (back >= J - 1)
                    return u[(long)(c.row0 + back - (J - 1)) * C + channel];
            }
        }
    return ring[((long)s.slot * (J - 1) + back) * C + channel];
}

kernel GROUP_OF(64) void causal_conv(
    global const int *table, int at_segments, int at_owner, global const float *u,
    global const float *taps, global const float *right, int has_right, global const float *ring,
    global float *tape, global float *y, int C, int J, int Q)
{
    int channel = get_global_id(0), row = get_global_id(1);
    if (channel >= C || row >= table[TABLE_ROWS])
        return;
    int index = table[at_owner + row];
    Segment s = segment_at(table, at_segments, index);
    int t = row - s.row0;
    float sum = 0.0f;
    for (int j = 0; j < J; j++)
        sum = fma(taps[(long)channel * J + j],
                  raw_at(table, at_segments, index, s, t + j - (J - 1), u, ring, C, J, channel),
                  sum);
    if (s.kind == PREVIEW && has_right)
        for (int d = 1; d < J && t + d < s.rows; d++)
            sum = fma(right[(long)channel * (J - 1) + d - 1], u[(long)(row + d) * C + channel],
                      sum);
    y[(long)row * C + channel] = silu(sum);
    if (s.kind == VERIFY)
        tape[((long)s.slot * Q + t) * C + channel] = u[(long)row * C + channel];
}

kernel GROUP_OF(64) void keep_ring(global const int *table, int at_segments, global const float *u,
                                   global float *ring, int C, int J)
{
    int channel = get_global_id(0);
    if (channel >= C)
        return;
    for (int i = get_group_id(1); i < table[TABLE_SEGMENTS]; i += get_num_groups(1)) {
        Segment s = segment_at(table, at_segments, i);
        if (s.kind != COMMIT || s.rows == 0)
            continue;
        global float *own = ring + (long)s.slot * (J - 1) * C + channel;
        // row j comes from a later one, which is not yet overwritten
        for (int j = 0; j < J - 1; j++) {
            int from = j + s.rows;
            own[(long)j * C] = from < J - 1
                                   ? own[(long)from * C]
                                   : u[(long)(s.row0 + from - (J - 1)) * C + channel];
        }
    }
}
