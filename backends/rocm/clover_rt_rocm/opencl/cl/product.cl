// Products of rows with a weight, in two forms. Sums are float32, in one order a form.
//
// few   1 or 4 rows (FEW_ROWS): 64 work-items are 4 teams of 16 lanes, a team has 4 columns. A lane
//       takes every sixteenth block of 32 of K; lanes are added in order.
// many  32 rows and 64 columns: 128 work-items with 4 x 4 sums each, K in steps of 32 through
//       12 KiB of local memory.
// Any K, any number of rows and columns: what is not there is multiplied as zero.
#define FEW_ITEMS 64
#define FEW_COLUMNS 16
#define MANY_ITEMS 128
#define MANY_ROWS 32
#define MANY_COLUMNS 64
#define DEPTH 32

float add8(float sum, float8 a, float8 b)
{
    sum = fma(a.s0, b.s0, sum);
    sum = fma(a.s1, b.s1, sum);
    sum = fma(a.s2, b.s2, sum);
    sum = fma(a.s3, b.s3, sum);
    sum = fma(a.s4, b.s4, sum);
    sum = fma(a.s5, b.s5, sum);
    sum = fma(a.s6, b.s6, sum);
    return fma(a.s7, b.s7, sum);
}

float8 row8(global const float *x, int k, int K)
{
    if (k + 8 <= K)
        return vload8(0, x + k);
    float8 found = (float8)(0.0f);
    int left = K - k;
    if (left > 0) found.s0 = x[k];
    if (left > 1) found.s1 = x[k + 1];
    if (left > 2) found.s2 = x[k + 2];
    if (left > 3) found.s3 = x[k + 3];
    if (left > 4) found.s4 = x[k + 4];
    if (left > 5) found.s5 = x[k + 5];
    if (left > 6) found.s6 = x[k + 6];
    return found;
}

#ifdef FEW_ROWS
#define FEW_SUMS (FEW_ROWS * 4)

// the sum of row lid / 16 and column lid % 16, for work-items below 16 * FEW_ROWS
float few_sum(local float *room, const float *sums)
{
    int lid = get_local_id(0);
    for (int i = 0; i < FEW_SUMS; i++)
        room[i * FEW_ITEMS + lid] = sums[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    float total = 0.0f;
    int row = lid / 16, team = lid % 16 / 4, column = lid % 4;
    if (row < FEW_ROWS)
        for (int lane = 0; lane < 16; lane++)
            total += room[(row * 4 + column) * FEW_ITEMS + team * 16 + lane];
    barrier(CLK_LOCAL_MEM_FENCE);
    return total;
}
#else
// 32 numbers of 32 rows, [k][row]; `mine` is the row of this work-item, lid % 32, or 0 for none
void stage_rows(local float *tile, global const float *mine, int k0, int K)
{
    int lid = get_local_id(0), row = lid % MANY_ROWS, part = lid / MANY_ROWS * 8;
    float8 x = (float8)(0.0f);
    if (mine && k0 + part < K)
        x = row8(mine, k0 + part, K);
    local float *to = tile + part * MANY_ROWS + row;
    to[0] = x.s0;
    to[MANY_ROWS] = x.s1;
    to[2 * MANY_ROWS] = x.s2;
    to[3 * MANY_ROWS] = x.s3;
    to[4 * MANY_ROWS] = x.s4;
    to[5 * MANY_ROWS] = x.s5;
    to[6 * MANY_ROWS] = x.s6;
    to[7 * MANY_ROWS] = x.s7;
}

// rows 4 (lid / 16) .. + 3, columns 4 (lid % 16) .. + 3
void add_tile(local const float *rows, local const float *columns, float4 *sums)
{
    int lid = get_local_id(0);
    rows += lid / 16 * 4;
    columns += lid % 16 * 4;
    for (int k = 0; k < DEPTH; k++) {
        float4 a = vload4(0, rows + k * MANY_ROWS), b = vload4(0, columns + k * MANY_COLUMNS);
        sums[0] = fma((float4)(a.s0), b, sums[0]);
        sums[1] = fma((float4)(a.s1), b, sums[1]);
        sums[2] = fma((float4)(a.s2), b, sums[2]);
        sums[3] = fma((float4)(a.s3), b, sums[3]);
    }
}

float element(float4 sums, int i)
{
    return i == 0 ? sums.s0 : i == 1 ? sums.s1 : i == 2 ? sums.s2 : sums.s3;
}
#endif
