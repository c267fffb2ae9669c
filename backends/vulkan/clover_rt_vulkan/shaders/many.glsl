// Products of 32 rows and 64 columns of a weight. Sums are float32, in one order.
//
// 128 items have 4 x 4 sums each: rows 4 ROW_FOUR .., columns 4 COLUMN_FOUR ..; K goes in steps of
// 32 through local memory: 4 KiB for the rows and 8 KiB for each of TILES tiles of weights (1 where
// it is not defined), INT8 less than half of it. Needs rows.glsl. Rows and columns that are not
// there are those of others again, and their sums are left.
#define TILE_ROWS 32u
#define TILE_COLUMNS 64u
#define TILE_ITEMS 128u
#define DEPTH 32u
#define ROW_FOUR (LID / 16u)
#define COLUMN_FOUR (LID % 16u)
#define NO_SUMS vec4[4](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0))
#ifndef TILES
#define TILES 1u
#endif

#ifdef INT8
// eight words of codes of 32 rows, [word][row]; scale and sum of codes of each row
shared uint rows_tile[8u * TILE_ROWS];
shared vec2 rows_about[TILE_ROWS];
// eight words of codes of 64 weight rows, [tile][word][row]; scale and zero point of each row
shared uint weights_tile[TILES * 8u * TILE_COLUMNS];
shared vec2 weights_about[TILES * TILE_COLUMNS];
#else
// 32 numbers of 32 rows, [k][row]
shared float rows_tile[DEPTH * TILE_ROWS];
// 32 numbers of 64 weight rows, [tile][k][row]
shared float weights_tile[TILES * DEPTH * TILE_COLUMNS];
#endif

#ifdef NORMED
// the squares of row LID % 32 that this item has seen, and of each row in the end
float own_squares = 0.0;
shared float squares_room[TILE_ITEMS];

// called by all items behind the sums
void keep_squares()
{
    squares_room[LID] = own_squares;
    barrier();
}

float norm_of(uint row)
{
    float squares = 0.0;
    for (uint part = 0u; part < TILE_ITEMS / TILE_ROWS; part++)
        squares += squares_room[part * TILE_ROWS + row];
    return sqrt(squares / float(K) + eps);
}
#define OWN_SQUARES , own_squares
#else
#define OWN_SQUARES
#endif

// stages columns k0 .. k0 + 31 of the row that starts at `start`: that of row LID % 32
void stage_rows(uint start, uint k0, uint width)
{
#ifdef INT8
    uint part = LID / TILE_ROWS, row = LID % TILE_ROWS, block = start + k0 / 32u;
    if (part < 2u) {
        uvec4 words = codes_of(block, part);
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            rows_tile[(4u * part + i) * TILE_ROWS + row] = words[i];
    } else if (part == 2u) {
        rows_about[row] = scale_and_sum(block);
    }
#else
    uint k = LID / TILE_ROWS * 8u, to = k * TILE_ROWS + LID % TILE_ROWS;
    Eight x = eight_of_row(start, k0 + k, width OWN_SQUARES);
#ifdef SIZED
    float factor = factor_of(start, k0);
    x.a *= factor;
    x.b *= factor;
#endif
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        rows_tile[to + i * TILE_ROWS] = x.a[i];
        rows_tile[to + (i + 4u) * TILE_ROWS] = x.b[i];
    }
#endif
}

// adds the products of the staged rows and a tile to the item's sums
void add_tile(uint tile, inout vec4 sums[4])
{
#ifdef INT8
    ivec4 dots[4] = ivec4[4](ivec4(0), ivec4(0), ivec4(0), ivec4(0));
    for (uint word = 0u; word < 8u; word++)
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint x = rows_tile[word * TILE_ROWS + ROW_FOUR * 4u + i];
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                uint w = weights_tile[(8u * tile + word) * TILE_COLUMNS + COLUMN_FOUR * 4u + j];
                dots[i][j] += dot_four(x, w);
            }
        }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec2 x = rows_about[ROW_FOUR * 4u + i];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            vec2 w = weights_about[tile * TILE_COLUMNS + COLUMN_FOUR * 4u + j];
            sums[i][j] = fma(float(dots[i][j]) - w.y * x.y, w.x * x.x, sums[i][j]);
        }
    }
#else
    for (uint k = 0u; k < DEPTH; k++) {
        uint a = k * TILE_ROWS + ROW_FOUR * 4u;
        uint b = (tile * DEPTH + k) * TILE_COLUMNS + COLUMN_FOUR * 4u;
        vec4 w = vec4(weights_tile[b], weights_tile[b + 1u], weights_tile[b + 2u],
                      weights_tile[b + 3u]);
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            sums[i] = fma(vec4(rows_tile[a + i]), w, sums[i]);
    }
#endif
}
