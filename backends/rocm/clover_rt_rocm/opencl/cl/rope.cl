// rope: one work-item for a number; cos and sin come from the table of angles.
kernel GROUP_OF(64) void rope(global const int *table, int at_segments, int at_owner,
                              global const float *x, global const float *angles, global float *y,
                              int width, int K, int r)
{
    int column = get_global_id(0), row = get_global_id(1);
    if (column >= width || row >= table[TABLE_ROWS])
        return;
    Segment s = segment_at(table, at_segments, table[at_owner + row]);
    long at = (long)row * width + column;
    int i = column % K;
    float own = x[at];
    if (i < 2 * r) {
        int pair = i % r;
        global const float *angle = angles + ((long)(s.position + row - s.row0) * r + pair) * 2;
        float other = i < r ? -x[at + r] : x[at - r];
        own = own * angle[0] + other * angle[1];
    }
    y[at] = own;
}
