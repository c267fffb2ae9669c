// expert_gemm: gate, up and silu in one kernel, down in a second; hidden rows float32 in scratch.
//
// The pairs of an expert are cut into tiles of FEW_ROWS (1 or 4) or MANY_ROWS (32) rows; a first
// kernel lists the tiles, so that the grid needs no length from the host. Without GROUPED one
// expert has every row. Launched once a part of the weights: experts first .. first + count - 1;
// tiles of others do nothing, and an expert without rows reads no weight.
// Forms and sums: product.cl. Local memory: 20 KiB in the many-row form, 6 KiB where it is ROUNDED.
#ifdef FEW_ROWS
#define TILE_ROWS FEW_ROWS
#else
#define TILE_ROWS MANY_ROWS
#endif

typedef struct {
    int expert;
    int start;
    int rows;
} Tile;

#ifdef GROUPED
#define PAIR(p) order[p]
// tiles[0] is their number; tile i is tiles[4 + 4 i]: expert, first place in order, rows
kernel GROUP_OF(256) void list_tiles(global const int *table, global const int *offsets, int E,
                                     global int *tiles)
{
    local int found[256];
    int lid = get_local_id(0), each = (E + 255) / 256, lo = lid * each, hi = min(lo + each, E);
    int own = 0;
    if (table[TABLE_ROWS] == 0)
        hi = lo;
    for (int e = lo; e < hi; e++)
        own += (offsets[e + 1] - offsets[e] + TILE_ROWS - 1) / TILE_ROWS;
    found[lid] = own;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 1; step < 256; step *= 2) {
        int more = lid >= step ? found[lid - step] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        found[lid] += more;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lid == 255)
        tiles[0] = found[255];
    int at = found[lid] - own;
    for (int e = lo; e < hi; e++)
        for (int p = offsets[e]; p < offsets[e + 1]; p += TILE_ROWS, at++) {
            tiles[4 + 4 * at] = e;
            tiles[5 + 4 * at] = p;
            tiles[6 + 4 * at] = min(offsets[e + 1] - p, TILE_ROWS);
        }
}

// tile i, or one without rows where it is of no expert of this launch
Tile tile_at(global const int *table, global const int *tiles, int i, int first, int count)
{
    Tile t = {first, 0, 0};
    int expert = i < tiles[0] ? tiles[4 + 4 * i] : -1;
    if (expert >= first && expert < first + count) {
        t.expert = expert;
        t.start = tiles[5 + 4 * i];
        t.rows = tiles[6 + 4 * i];
    }
    return t;
}
#else
#define PAIR(p) (p)
Tile tile_at(global const int *table, global const int *tiles, int i, int first, int count)
{
    int start = i * TILE_ROWS, rows = min(table[TABLE_ROWS] - start, TILE_ROWS);
    Tile t = {0, start, max(rows, 0)};
    return t;
}
#endif

#ifdef FEW_ROWS
kernel GROUP_OF(FEW_ITEMS) void gate_up(
    global const int *table, global const int *tiles, global const int *order,
    global const float *x, WEIGHT(gate), WEIGHT(up), global float *hidden, int top_k, int D, int F,
    int first, int count)
{
    local float room[FEW_ROOM];
    int lid = get_local_id(0);
    Tile t = tile_at(table, tiles, get_group_id(1), first, count);
    int column0 = get_group_id(0) * FEW_COLUMNS, depth = t.rows ? D : 0;
    long row = (long)(t.expert - first) * F + column0;
    global const float *from[FEW_ROWS];
    for (int m = 0; m < FEW_ROWS; m++)
        from[m] = m < t.rows ? x + (long)(PAIR(t.start + m) / top_k) * D : 0;
    float g = few_gate(room, GIVEN(gate), row, F - column0, depth, from, t.rows);
    float u = few_up(room, GIVEN(up), row, F - column0, depth, from, t.rows);
    int m = lid / 16, column = column0 + lid % 16;
    if (m < t.rows && column < F)
        hidden[(long)(t.start + m) * F + column] = silu(g) * u;
}

kernel GROUP_OF(FEW_ITEMS) void down(
    global const int *table, global const int *tiles, global const int *order,
    global const float *hidden, WEIGHT(down), global float *y, int D, int F, int first, int count)
{
    local float room[FEW_ROOM];
    int lid = get_local_id(0);
    Tile t = tile_at(table, tiles, get_group_id(1), first, count);
    int column0 = get_group_id(0) * FEW_COLUMNS;
    global const float *from[FEW_ROWS];
    for (int m = 0; m < FEW_ROWS; m++)
        from[m] = hidden + (long)(t.start + m) * F;
    long row = (long)(t.expert - first) * D + column0;
    float total =
        few_down(room, GIVEN(down), row, D - column0, t.rows ? F : 0, from, t.rows);
    int m = lid / 16, column = column0 + lid % 16;
    if (m < t.rows && column < D)
        y[(long)PAIR(t.start + m) * D + column] = total;
}
#else
kernel GROUP_OF(MANY_ITEMS) void gate_up(
    global const int *table, global const int *tiles, global const int *order,
    global const Number *x, WEIGHT(gate), WEIGHT(up), global float *hidden, int top_k, int D, int F,
    int first, int count)
{
    local RowTile rows_tile;
    local ColumnTile gate_tile, up_tile;
    int lid = get_local_id(0), own = lid % MANY_ROWS;
    Tile t = tile_at(table, tiles, get_group_id(1), first, count);
    int column0 = get_group_id(0) * MANY_COLUMNS;
    long row = (long)(t.expert - first) * F + column0;
    global const Number *mine =
        own < t.rows ? x + (long)(PAIR(t.start + own) / top_k) * PITCH(D) : 0;
    float4 g[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
    float4 u[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
    for (int k = 0; k < (t.rows ? D : 0); k += DEPTH) {
        stage_rows(&rows_tile, mine, k, D);
        stage_gate(GIVEN(gate), row, F - column0, D, k, &gate_tile);
        stage_up(GIVEN(up), row, F - column0, D, k, &up_tile);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_tile(&rows_tile, &gate_tile, g);
        add_tile(&rows_tile, &up_tile, u);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < 4; i++) {
        int m = lid / 16 * 4 + i;
        for (int j = 0; j < 4; j++) {
            int column = column0 + lid % 16 * 4 + j;
            if (m < t.rows && column < F)
                hidden[(long)(t.start + m) * F + column] =
                    silu(element(g[i], j)) * element(u[i], j);
        }
    }
}

kernel GROUP_OF(MANY_ITEMS) void down(
    global const int *table, global const int *tiles, global const int *order,
    global const Number *hidden, WEIGHT(down), global float *y, int D, int F, int first, int count)
{
    local RowTile rows_tile;
    local ColumnTile columns_tile;
    int lid = get_local_id(0), own = lid % MANY_ROWS;
    Tile t = tile_at(table, tiles, get_group_id(1), first, count);
    int column0 = get_group_id(0) * MANY_COLUMNS;
    long row = (long)(t.expert - first) * D + column0;
    global const Number *mine = own < t.rows ? hidden + (long)(t.start + own) * PITCH(F) : 0;
    float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
    for (int k = 0; k < (t.rows ? F : 0); k += DEPTH) {
        stage_rows(&rows_tile, mine, k, F);
        stage_down(GIVEN(down), row, D - column0, F, k, &columns_tile);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_tile(&rows_tile, &columns_tile, sums);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < 4; i++) {
        int m = lid / 16 * 4 + i;
        for (int j = 0; j < 4; j++) {
            int column = column0 + lid % 16 * 4 + j;
            if (m < t.rows && column < D)
                y[(long)PAIR(t.start + m) * D + column] = element(sums[i], j);
        }
    }
}
#endif
