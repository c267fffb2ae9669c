// The part of a product that knows the weight: compiled once a weight, behind its `weight.cl`,
// with the same NAME.
#ifdef FEW_ROWS
// adds row x[m] times weight rows `row` .. row + columns - 1 (at most 4) to sums[4 m + c]
void JOIN(few_, NAME)(global const uchar *codes, global const half *scale,
                      global const uchar *zero, int group, long row, int columns, int K,
                      global const float **x, int rows, float *sums)
{
    for (int i = 0; i < FEW_SUMS; i++)
        sums[i] = 0.0f;
    int lane = get_local_id(0) % 16;
    for (int block = lane * 32; block < K; block += 16 * 32) {
        for (int k = block; k < block + 32 && k < K; k += 8) {
            float8 parts[FEW_ROWS];
            for (int m = 0; m < FEW_ROWS; m++)
                parts[m] = m < rows ? row8(x[m], k, K) : (float8)(0.0f);
            for (int c = 0; c < 4; c++) {
                if (c >= columns)
                    continue;
                float8 w = JOIN(load8_, NAME)(codes, scale, zero, group, row + c, k, K);
                for (int m = 0; m < FEW_ROWS; m++)
                    sums[4 * m + c] = add8(sums[4 * m + c], w, parts[m]);
            }
        }
    }
}
#else
// 32 numbers of 64 weight rows, [k][row]
void JOIN(stage_, NAME)(global const uchar *codes, global const half *scale,
                        global const uchar *zero, int group, long row, int columns, int K, int k0,
                        local float *tile)
{
    for (int i = get_local_id(0); i < 4 * MANY_COLUMNS; i += MANY_ITEMS) {
        int column = i % MANY_COLUMNS, part = i / MANY_COLUMNS * 8;
        float8 w = (float8)(0.0f);
        if (column < columns && k0 + part < K)
            w = JOIN(load8_, NAME)(codes, scale, zero, group, row + column, k0 + part, K);
        local float *to = tile + part * MANY_COLUMNS + column;
        to[0] = w.s0;
        to[MANY_COLUMNS] = w.s1;
        to[2 * MANY_COLUMNS] = w.s2;
        to[3 * MANY_COLUMNS] = w.s3;
        to[4 * MANY_COLUMNS] = w.s4;
        to[5 * MANY_COLUMNS] = w.s5;
        to[6 * MANY_COLUMNS] = w.s6;
        to[7 * MANY_COLUMNS] = w.s7;
    }
}
#endif
