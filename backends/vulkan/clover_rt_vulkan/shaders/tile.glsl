// Tiles of expert_gemm: the rows of one expert that a group multiplies. Needs GROUPED, MOST_ROWS
// (the rows of a tile), table.glsl, `tiles`, `order`, their starts, and `first` and `count`.
struct Tile {
    uint expert;
    uint start;
    uint rows;
};

// tile i of an expert that takes every row, once
Tile tile_of_rows(uint i)
{
    uint start = i * MOST_ROWS, rows = table_rows();
    return Tile(0u, start, start < rows ? min(rows - start, MOST_ROWS) : 0u);
}

// tile i, or one without rows where it is of no expert of this dispatch; `expert` counts from
// `first`
Tile tile_at(uint i)
{
    if (GROUPED == 0u)
        return tile_of_rows(i);
    if (i >= tiles[tiles_at])
        return Tile(0u, 0u, 0u);
    uint at = tiles_at + 4u + 4u * i, expert = tiles[at];
    if (expert < first || expert - first >= count)
        return Tile(0u, 0u, 0u);
    return Tile(expert - first, tiles[at + 1u], tiles[at + 2u]);
}

// the pair of a place in order
uint pair_at(uint place)
{
    return GROUPED == 0u ? place : order[order_at + place];
}
