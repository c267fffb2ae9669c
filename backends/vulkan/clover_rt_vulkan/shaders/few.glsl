// Products of 1 to 4 rows (ROWS) with a weight. Sums are float32, in one order.
//
// 16 items are a team with 4 columns; an item takes every sixteenth block of 32 of K, and the items
// of a team are added in order. Needs ROWS and rows.glsl. Rows and columns that are not there are
// those of others again, and their sums are left. Local memory: 16 ROWS ITEMS bytes, 20 where
// NORMED.
#define LANES 16u
// columns of a group, and the first of the item's team
#define COLUMNS (ITEMS / 4u)
#define TEAM_COLUMN (LID / LANES * 4u)

#ifdef NORMED
// behind the sums of products are those of a row's squares
const uint SUMS = ROWS * 5u;
#else
const uint SUMS = ROWS * 4u;
#endif
shared float sums_room[SUMS * ITEMS];

float add_eight(float sum, Eight x, Eight y)
{
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        sum = fma(x.a[i], y.a[i], sum);
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        sum = fma(x.b[i], y.b[i], sum);
    return sum;
}

// the sum of row LID / COLUMNS and column LID % COLUMNS, for items below ROWS COLUMNS
float few_sum(float sums[SUMS])
{
    [[unroll]] for (uint i = 0u; i < SUMS; i++)
        sums_room[i * ITEMS + LID] = sums[i];
    barrier();
    float total = 0.0, squares = 0.0;
    uint row = LID / COLUMNS, column = LID % COLUMNS;
    if (row < ROWS)
        for (uint lane = 0u; lane < LANES; lane++) {
            uint from = column / 4u * LANES + lane;
            total += sums_room[(row * 4u + column % 4u) * ITEMS + from];
#ifdef NORMED
            squares += sums_room[(ROWS * 4u + row) * ITEMS + from];
#endif
        }
    barrier();
#ifdef NORMED
    total /= sqrt(squares / float(K) + eps);
#endif
    return total;
}
