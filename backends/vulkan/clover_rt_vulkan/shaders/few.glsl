// Products of 1 to 4 or of 8 rows (ROWS) with a weight. Sums are float32, in one order.
//
// 16 items are a team with 4 columns; an item takes every sixteenth block of 32 of K, and the items
// of a team are added in order. 8 rows are two steps of 4, which share a block that is read; the
// second is left out where it has no rows. Needs ROWS and rows.glsl. Other rows and columns that
// are not there are those of others again, and their sums are left. Local memory: 16 STEP ITEMS
// bytes, 20 where NORMED.
#define LANES 16u
// columns of a group, and the first of the item's team
#define COLUMNS (ITEMS / 4u)
#define TEAM_COLUMN (LID / LANES * 4u)

const uint STEP = ROWS < 4u ? ROWS : 4u;
const uint STEPS = ROWS / STEP;
#ifdef NORMED
// behind the sums of products are those of a row's squares
const uint SUMS_OF_ROW = 5u;
#else
const uint SUMS_OF_ROW = 4u;
#endif
const uint SUMS = ROWS * SUMS_OF_ROW;
shared float sums_room[STEP * SUMS_OF_ROW * ITEMS];

float add_eight(float sum, Eight x, Eight y)
{
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        sum = fma(x.a[i], y.a[i], sum);
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        sum = fma(x.b[i], y.b[i], sum);
    return sum;
}

// each step's sum of row LID / COLUMNS and column LID % COLUMNS, for items below STEP COLUMNS
vec2 few_sums(float sums[SUMS], uint rows)
{
    vec2 totals = vec2(0.0);
    uint row = LID / COLUMNS, column = LID % COLUMNS;
    [[unroll]] for (uint step = 0u; step < STEPS; step++) {
        if (step > 0u && step * STEP >= rows)
            continue;
        [[unroll]] for (uint i = 0u; i < 4u * STEP; i++)
            sums_room[i * ITEMS + LID] = sums[4u * STEP * step + i];
#ifdef NORMED
        [[unroll]] for (uint i = 0u; i < STEP; i++)
            sums_room[(4u * STEP + i) * ITEMS + LID] = sums[4u * ROWS + STEP * step + i];
#endif
        barrier();
        float total = 0.0, squares = 0.0;
        if (row < STEP)
            for (uint lane = 0u; lane < LANES; lane++) {
                uint from = column / 4u * LANES + lane;
                total += sums_room[(row * 4u + column % 4u) * ITEMS + from];
#ifdef NORMED
                squares += sums_room[(4u * STEP + row) * ITEMS + from];
#endif
            }
        barrier();
#ifdef NORMED
        total /= sqrt(squares / float(K) + eps);
#endif
        totals[step] = total;
    }
    return totals;
}
