// output_gate: one work-item for a number.
kernel GROUP_OF(64) void output_gate(global const int *table, global const float *o,
                                     global const float *gate, global float *y, int N)
{
    int n = get_global_id(0), row = get_global_id(1);
    if (n >= N || row >= table[TABLE_ROWS])
        return;
    long at = (long)row * N + n;
    y[at] = o[at] * sigmoid(gate[at]);
}
