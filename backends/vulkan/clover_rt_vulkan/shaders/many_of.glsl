// The part of many.glsl that knows the weight: included behind its weight.glsl, with the same NAME.

#ifdef INT8
// eight words of codes of 64 weight rows, [word][row]; scale and zero point of each row
shared uint JOIN(NAME, _tile)[8u * TILE_COLUMNS];
shared vec2 JOIN(NAME, _about)[TILE_COLUMNS];
#else
// 32 numbers of 64 weight rows, [k][row]
shared float JOIN(NAME, _tile)[DEPTH * TILE_COLUMNS];
#endif

// stages columns k0 .. k0 + 31 of weight rows `row` .. row + 63, at most `last`
void JOIN(stage_, NAME)(uint row, uint last, uint k0, uint width)
{
    uint column = LID % TILE_COLUMNS, from = min(row + column, last);
    Block block = JOIN(block_, NAME)(from, k0, width);
#ifdef INT8
    uint high = LID / TILE_COLUMNS;
    uvec4 words = JOIN(bytes_, NAME)(block)[high];
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        JOIN(NAME, _tile)[(4u * high + i) * TILE_COLUMNS + column] = words[i];
    if (high == 0u)
        JOIN(NAME, _about)[column] = vec2(block.scale, block.zero);
#else
    [[unroll]] for (uint j = 0u; j < 2u; j++) {
        uint part = LID / TILE_COLUMNS * 2u + j, to = part * 8u * TILE_COLUMNS + column;
        Eight w = JOIN(eight_, NAME)(block, from, k0, part, width);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            JOIN(NAME, _tile)[to + i * TILE_COLUMNS] = w.a[i] * block.scale;
            JOIN(NAME, _tile)[to + (i + 4u) * TILE_COLUMNS] = w.b[i] * block.scale;
        }
    }
#endif
}

// adds the products of what is staged to the item's sums
void JOIN(add_, NAME)(inout vec4 sums[4])
{
#ifdef INT8
    ivec4 dots[4] = ivec4[4](ivec4(0), ivec4(0), ivec4(0), ivec4(0));
    for (uint word = 0u; word < 8u; word++)
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint x = rows_tile[word * TILE_ROWS + ROW_FOUR * 4u + i];
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                uint w = JOIN(NAME, _tile)[word * TILE_COLUMNS + COLUMN_FOUR * 4u + j];
                dots[i][j] += dot_four(x, w);
            }
        }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec2 x = rows_about[ROW_FOUR * 4u + i];
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            vec2 w = JOIN(NAME, _about)[COLUMN_FOUR * 4u + j];
            sums[i][j] = fma(float(dots[i][j]) - w.y * x.y, w.x * x.x, sums[i][j]);
        }
    }
#else
    for (uint k = 0u; k < DEPTH; k++) {
        uint a = k * TILE_ROWS + ROW_FOUR * 4u, b = k * TILE_COLUMNS + COLUMN_FOUR * 4u;
        vec4 w = vec4(JOIN(NAME, _tile)[b], JOIN(NAME, _tile)[b + 1u], JOIN(NAME, _tile)[b + 2u],
                      JOIN(NAME, _tile)[b + 3u]);
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            sums[i] = fma(vec4(rows_tile[a + i]), w, sums[i]);
    }
#endif
}
