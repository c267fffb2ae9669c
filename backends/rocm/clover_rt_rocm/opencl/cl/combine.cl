// combine: one work-item for a number of a row; experts are added in slot order.
kernel GROUP_OF(64) void combine(global const int *table, global const float *y,
                                 global const int *ids, global const float *weights,
                                 global const float *shared, global const float *shared_gate,
                                 global const float *residual, global float *h, int R, int D)
{
    int column = get_global_id(0), row = get_global_id(1);
    if (column >= D || row >= table[TABLE_ROWS])
        return;
    long at = (long)row * D + column;
    float sum = shared[at] * sigmoid(shared_gate[row]);
    for (int r = 0; r < R; r++) {
        long pair = (long)row * R + r;
        if (ids[pair] >= 0)
            sum = fma(weights[pair], y[pair * D + column], sum);
    }
    h[at] = sum + residual[at];
}
