// gated_norm: 64 work-items for a value head of a row; sums as in rms_norm.
kernel GROUP_OF(64) void gated_norm(global const int *table, global const float *o,
                                    global const float *z, global const float *w, global float *y,
                                    int V, float eps)
{
    local float room[64];
    int lid = get_local_id(0), row = get_group_id(1);
    int live = row < table[TABLE_ROWS] ? V : 0;
    long at = ((long)row * get_num_groups(0) + get_group_id(0)) * V;
    float own = 0.0f;
    for (int v = lid; v < live; v += 64)
        own = fma(o[at + v], o[at + v], own);
    float rms = sqrt(sum_of_items(room, own) / V + eps);
    for (int v = lid; v < live; v += 64)
        y[at + v] = o[at + v] / rms * w[v] * silu(z[at + v]);
}
