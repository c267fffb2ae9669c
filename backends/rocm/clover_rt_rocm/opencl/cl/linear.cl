// linear: rows times a weight, plus a residual. Forms, tiles and sums: product.cl.
//
// Launched once a part of the weight: its columns first .. first + count - 1 of N.
#ifdef FEW_ROWS
kernel GROUP_OF(FEW_ITEMS) void linear_few(
    global const int *table, global const float *x, WEIGHT(w), global const float *residual,
    int has_residual, global float *y, int K, int N, int first, int count)
{
    local float room[FEW_ROOM];
    int lid = get_local_id(0), row0 = get_group_id(1) * FEW_ROWS;
    int rows = min(table[TABLE_ROWS] - row0, FEW_ROWS);
    int column0 = get_group_id(0) * FEW_COLUMNS;
    global const float *from[FEW_ROWS];
    for (int m = 0; m < FEW_ROWS; m++)
        from[m] = x + (long)(row0 + m) * K;
    float total =
        few_w(room, GIVEN(w), column0, count - column0, rows > 0 ? K : 0, from, rows);
    int row = lid / 16, column = column0 + lid % 16;
    if (row < rows && column < count) {
        long to = (long)(row0 + row) * N + first + column;
        y[to] = has_residual ? total + residual[to] : total;
    }
}
#else
kernel GROUP_OF(MANY_ITEMS) void linear_many(
    global const int *table, global const Number *x, WEIGHT(w), global const float *residual,
    int has_residual, global float *y, int K, int N, int first, int count)
{
    local RowTile rows_tile;
    local ColumnTile columns_tile;
    int lid = get_local_id(0), row0 = get_group_id(1) * MANY_ROWS;
    int rows = min(table[TABLE_ROWS] - row0, MANY_ROWS);
    int column0 = get_group_id(0) * MANY_COLUMNS, depth = rows > 0 ? K : 0;
    int own = lid % MANY_ROWS;
    global const Number *mine = own < rows ? x + (long)(row0 + own) * PITCH(K) : 0;
    float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
    for (int k = 0; k < depth; k += DEPTH) {
        stage_rows(&rows_tile, mine, k, K);
        stage_w(GIVEN(w), column0, count - column0, K, k, &columns_tile);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_tile(&rows_tile, &columns_tile, sums);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < 4; i++) {
        int row = lid / 16 * 4 + i;
        for (int j = 0; j < 4; j++) {
            int column = column0 + lid % 16 * 4 + j;
            if (row < rows && column < count) {
                long to = (long)(row0 + row) * N + first + column;
                float total = element(sums[i], j);
                y[to] = has_residual ? total + residual[to] : total;
            }
        }
    }
}
#endif
