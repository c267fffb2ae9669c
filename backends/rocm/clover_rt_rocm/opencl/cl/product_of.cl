// The part of a product that knows the weight: compiled once a weight, behind its `weight.cl`,
// with the same NAME.
#ifdef FEW_ROWS
// the sum of row lid / 16 and column lid % 16 for work-items below 16 * FEW_ROWS: rows x[m] times
// weight rows `row` .., of which there are `columns`
float JOIN(few_, NAME)(local float *room, global const uchar *codes, global const half *scale,
                       global const uchar *zero, int group, long row, int columns, int K,
                       global const float **x, int rows)
{
    for (int four = FEW_TEAM * 4; four < FEW_COLUMNS; four += FEW_TEAMS * 4) {
        float sums[FEW_SUMS];
        for (int i = 0; i < FEW_SUMS; i++)
            sums[i] = 0.0f;
        for (int block = FEW_LANE * FEW_STEP; block < K; block += FEW_LANES * FEW_STEP) {
            for (int k = block; k < block + FEW_STEP && k < K; k += 8) {
                float8 parts[FEW_ROWS];
                for (int m = 0; m < FEW_ROWS; m++)
                    parts[m] = m < rows ? row8(x[m], k, K) : (float8)(0.0f);
                for (int c = 0; c < 4; c++) {
                    if (four + c >= columns)
                        continue;
                    float8 w =
                        JOIN(load8_, NAME)(codes, scale, zero, group, row + four + c, k, K);
                    for (int m = 0; m < FEW_ROWS; m++)
                        sums[4 * m + c] = add8(sums[4 * m + c], w, parts[m]);
                }
            }
        }
        keep_few(room, four, sums);
    }
    return few_sum(room);
}
#elif defined(ROUNDED)
// a block of 64 weight rows: of q4 each word has the even or the odd columns of eight, which is how
// `round_rows` orders a row's
void JOIN(stage_, NAME)(global const uchar *codes, global const half *scale,
                        global const uchar *zero, int group, long row, int columns, int K, int k0,
                        local ColumnTile *tile)
{
    int lid = get_local_id(0), column = lid % MANY_COLUMNS, part = lid / MANY_COLUMNS;
    local uint *to = tile->codes + 4 * part * MANY_COLUMNS + column;
    int is_there = column < columns;
    long from = row + (is_there ? column : 0);
    uint4 words;
#ifdef CODES_Q4
    long at = from * (K / group) + k0 / group;
    uint2 pairs = vload2(0, (global const uint *)(codes + from * (K / 2) + k0 / 2) + 2 * part);
    words = ((uint4)(pairs.s0, pairs.s0 >> 4, pairs.s1, pairs.s1 >> 4)) & (uint4)(0x0f0f0f0fu);
#if HAS_ZERO
    float offset = zero[at];
#else
    float offset = 8.0f;
#endif
#else
    long at = from * (K / 32) + k0 / 32;
    words = vload4(0, (global const uint *)(codes + from * K + k0) + 4 * part);
    float offset = 0.0f;
#endif
    to[0] = words.s0;
    to[MANY_COLUMNS] = words.s1;
    to[2 * MANY_COLUMNS] = words.s2;
    to[3 * MANY_COLUMNS] = words.s3;
    if (part == 0)
        tile->about[column] = (float2)(is_there ? vload_half(at, scale) : 0.0f, offset);
}
#else
// 32 numbers of 64 weight rows, [k][row]
void JOIN(stage_, NAME)(global const uchar *codes, global const half *scale,
                        global const uchar *zero, int group, long row, int columns, int K, int k0,
                        local ColumnTile *tile)
{
    for (int i = get_local_id(0); i < 4 * MANY_COLUMNS; i += MANY_ITEMS) {
        int column = i % MANY_COLUMNS, part = i / MANY_COLUMNS * 8;
        float8 w = (float8)(0.0f);
        if (column < columns && k0 + part < K)
            w = JOIN(load8_, NAME)(codes, scale, zero, group, row + column, k0 + part, K);
        local float *to = tile->numbers + part * MANY_COLUMNS + column;
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
