// gdn_gates: one work-item for a head of a row. rate is -exp(A_log), from the host.
kernel GROUP_OF(64) void gdn_gates(global const int *table, global const float *a,
                                   global const float *b, global const float *rate,
                                   global const float *bias, global float *g, global float *beta,
                                   int H)
{
    int h = get_global_id(0), row = get_global_id(1);
    if (h >= H || row >= table[TABLE_ROWS])
        return;
    long at = (long)row * H + h;
    float x = a[at] + bias[h];
    g[at] = rate[h] * (fmax(x, 0.0f) + log1p(exp(-fabs(x))));
    beta[at] = sigmoid(b[at]);
}
