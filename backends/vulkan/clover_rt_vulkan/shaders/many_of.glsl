// The part of many.glsl that knows the weight: included behind its weight.glsl, with the same NAME.

// stages columns k0 .. k0 + 31 of weight rows `row` .. row + 63, at most `last`, as a tile
void JOIN(stage_, NAME)(uint tile, uint row, uint last, uint k0, uint width)
{
    uint column = LID % TILE_COLUMNS, from = min(row + column, last);
    Block block = JOIN(block_, NAME)(from, k0, width);
#ifdef INT8
    uint high = LID / TILE_COLUMNS;
    uvec4 words = JOIN(bytes_, NAME)(block)[high];
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        weights_tile[(8u * tile + 4u * high + i) * TILE_COLUMNS + column] = words[i];
    if (high == 0u)
        weights_about[tile * TILE_COLUMNS + column] = vec2(block.scale, block.zero);
#else
    [[unroll]] for (uint j = 0u; j < 2u; j++) {
        uint part = LID / TILE_COLUMNS * 2u + j;
        uint to = (tile * DEPTH + part * 8u) * TILE_COLUMNS + column;
        Eight w = JOIN(eight_, NAME)(block, from, k0, part, width);
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            weights_tile[to + i * TILE_COLUMNS] = w.a[i] * block.scale;
            weights_tile[to + (i + 4u) * TILE_COLUMNS] = w.b[i] * block.scale;
        }
    }
#endif
}
