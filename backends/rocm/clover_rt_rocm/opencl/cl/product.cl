// Products of rows with a weight, in two forms. Sums are float32, in one order a form.
//
// few   1 or 4 rows (FEW_ROWS): 64 work-items are 4 teams of 16 lanes, a team has 4 columns. A lane
//       takes every sixteenth block of 32 of K; lanes are added in order. With subgroups a team is
//       one, of any size, takes 8 of K a lane at a time, and adds up without local memory.
// many  32 rows and 64 columns: 128 work-items with 4 x 4 sums each, K in steps of 32 through
//       12 KiB of local memory; ROUNDED through 4 KiB, for rows of `round_rows` and weights in q4
//       or q8: four products an integer dot, a block of 32 scaled and added in float32.
// Any K (ROUNDED: a multiple of 32), any number of rows and columns: what is not there is
// multiplied as zero.
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
#ifdef TEAMS
#define FEW_TEAM ((int)TEAM)
#define FEW_TEAMS ((int)TEAMS)
#define FEW_LANE ((int)LANE)
#define FEW_LANES ((int)LANES)
#define FEW_STEP 8
#define FEW_ROOM (FEW_ROWS * FEW_COLUMNS)
#else
#define FEW_TEAM ((int)get_local_id(0) / 16)
#define FEW_TEAMS 4
#define FEW_LANE ((int)get_local_id(0) % 16)
#define FEW_LANES 16
#define FEW_STEP 32
#define FEW_ROOM (FEW_SUMS * FEW_ITEMS)
#endif

// keeps a team's sums of columns `four` .. four + 3
void keep_few(local float *room, int four, const float *sums)
{
#ifdef TEAMS
    for (int i = 0; i < FEW_SUMS; i++) {
        float total = LANES_SUM(sums[i]);
        if (LANE == 0)
            room[i / 4 * FEW_COLUMNS + four + i % 4] = total;
    }
#else
    for (int i = 0; i < FEW_SUMS; i++)
        room[i * FEW_ITEMS + get_local_id(0)] = sums[i];
#endif
}

// the sum of row lid / 16 and column lid % 16, for work-items below 16 * FEW_ROWS
float few_sum(local float *room)
{
    int lid = get_local_id(0), row = lid / 16;
    float total = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
#ifdef TEAMS
    if (row < FEW_ROWS)
        total = room[lid];
#else
    int team = lid % 16 / 4, column = lid % 4;
    if (row < FEW_ROWS)
        for (int lane = 0; lane < 16; lane++)
            total += room[(row * 4 + column) * FEW_ITEMS + team * 16 + lane];
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    return total;
}
#elif defined(ROUNDED)
// a block of 32 numbers of a row: 8 words of codes, their scale, the sum of the codes
#define BLOCK_WORDS 10
typedef uint Number;
#define PITCH(K) ((K) / DEPTH * BLOCK_WORDS)

// words of codes as [word][row], and of each row scale and sum of codes, or scale and zero point
typedef struct {
    uint codes[8 * MANY_ROWS];
    float2 about[MANY_ROWS];
} RowTile;

typedef struct {
    uint codes[8 * MANY_COLUMNS];
    float2 about[MANY_COLUMNS];
} ColumnTile;

// the block from k0 on of 32 rows; `mine` is the row of this work-item, lid % 32, or 0 for none
void stage_rows(local RowTile *tile, global const uint *mine, int k0, int K)
{
    int lid = get_local_id(0), row = lid % MANY_ROWS, part = lid / MANY_ROWS * 2;
    global const uint *block = mine + PITCH(k0);
    tile->codes[part * MANY_ROWS + row] = mine ? block[part] : 0u;
    tile->codes[(part + 1) * MANY_ROWS + row] = mine ? block[part + 1] : 0u;
    if (part == 0)
        tile->about[row] = mine ? as_float2(vload2(0, block + 8)) : (float2)(0.0f);
}

int4 dot_four(uint row, uint4 columns, int4 sums)
{
    return (int4)(DOT4(row, columns.s0, sums.s0), DOT4(row, columns.s1, sums.s1),
                  DOT4(row, columns.s2, sums.s2), DOT4(row, columns.s3, sums.s3));
}

float4 add_block(float4 sums, int4 dots, float2 row, float4 scales, float4 zeros)
{
    return fma(convert_float4(dots) - zeros * row.s1, scales * row.s0, sums);
}

// rows 4 (lid / 16) .. + 3, columns 4 (lid % 16) .. + 3
void add_tile(local const RowTile *rows, local const ColumnTile *columns, float4 *sums)
{
    int row = get_local_id(0) / 16 * 4, column = get_local_id(0) % 16 * 4;
    int4 dots[4] = {(int4)(0), (int4)(0), (int4)(0), (int4)(0)};
    for (int word = 0; word < 8; word++) {
        uint4 a = vload4(0, rows->codes + word * MANY_ROWS + row);
        uint4 b = vload4(0, columns->codes + word * MANY_COLUMNS + column);
        dots[0] = dot_four(a.s0, b, dots[0]);
        dots[1] = dot_four(a.s1, b, dots[1]);
        dots[2] = dot_four(a.s2, b, dots[2]);
        dots[3] = dot_four(a.s3, b, dots[3]);
    }
    float4 scales, zeros;
    scales.s0 = columns->about[column].s0;
    scales.s1 = columns->about[column + 1].s0;
    scales.s2 = columns->about[column + 2].s0;
    scales.s3 = columns->about[column + 3].s0;
    zeros.s0 = columns->about[column].s1;
    zeros.s1 = columns->about[column + 1].s1;
    zeros.s2 = columns->about[column + 2].s1;
    zeros.s3 = columns->about[column + 3].s1;
    for (int i = 0; i < 4; i++)
        sums[i] = add_block(sums[i], dots[i], rows->about[row + i], scales, zeros);
}
#else
typedef float Number;
#define PITCH(K) (K)

// 32 numbers of rows as [k][row]
typedef struct {
    float numbers[DEPTH * MANY_ROWS];
} RowTile;

typedef struct {
    float numbers[DEPTH * MANY_COLUMNS];
} ColumnTile;

// columns k0 .. k0 + 31 of 32 rows; `mine` is the row of this work-item, lid % 32, or 0 for none
void stage_rows(local RowTile *tile, global const float *mine, int k0, int K)
{
    int lid = get_local_id(0), row = lid % MANY_ROWS, part = lid / MANY_ROWS * 8;
    float8 x = (float8)(0.0f);
    if (mine && k0 + part < K)
        x = row8(mine, k0 + part, K);
    local float *to = tile->numbers + part * MANY_ROWS + row;
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
void add_tile(local const RowTile *row_tile, local const ColumnTile *column_tile, float4 *sums)
{
    int lid = get_local_id(0);
    local const float *rows = row_tile->numbers + lid / 16 * 4;
    local const float *columns = column_tile->numbers + lid % 16 * 4;
    for (int k = 0; k < DEPTH; k++) {
        float4 a = vload4(0, rows + k * MANY_ROWS), b = vload4(0, columns + k * MANY_COLUMNS);
        sums[0] = fma((float4)(a.s0), b, sums[0]);
        sums[1] = fma((float4)(a.s1), b, sums[1]);
        sums[2] = fma((float4)(a.s2), b, sums[2]);
        sums[3] = fma((float4)(a.s3), b, sums[3]);
    }
}
#endif

#ifndef FEW_ROWS
float element(float4 sums, int i)
{
    return i == 0 ? sums.s0 : i == 1 ? sums.s1 : i == 2 ? sums.s2 : sums.s3;
}
#endif
