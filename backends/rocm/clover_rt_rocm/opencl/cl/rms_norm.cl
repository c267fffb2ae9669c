// rms_norm: 64 work-items for a group of K columns of a row; squares are added in float32, lane by
// lane, then as a tree. w is offset + the weight.
kernel GROUP_OF(64) void rms_norm(global const int *table, global const float *x,
                                  global const float *w, global float *y, int K, float eps)
{
    local float room[64];
    int lid = get_local_id(0), row = get_group_id(1);
    int live = row < table[TABLE_ROWS] ? K : 0;
    long at = ((long)row * get_num_groups(0) + get_group_id(0)) * K;
    float own = 0.0f;
    for (int k = lid; k < live; k += 64)
        own = fma(x[at + k], x[at + k], own);
    float rms = sqrt(sum_of_items(room, own) / K + eps);
    for (int k = lid; k < live; k += 64)
        y[at + k] = x[at + k] / rms * w[k];
}
