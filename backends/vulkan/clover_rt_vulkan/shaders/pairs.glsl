// Tiles of routed pairs without lists: group i is that of pair i, and stands for a tile if the pair
// is the first of one. Needs ROWS (the rows of a tile, at most 8), R, table.glsl, `ids` and its
// start. A row has an expert once, so that an expert's pairs are told by their rows.
#define MOST_GROUPED 64u
shared uint chosen_rows[MOST_GROUPED / 32u];
// the pair of each row that has the expert at hand
shared uint pairs_of_rows[MOST_GROUPED];

struct Tile {
    uint expert;
    uint rows;
    uint pairs[8];
};

// the tile that starts with pair i, or one without rows
Tile tile_of(uint i)
{
    Tile t = Tile(0u, 0u, uint[8](i, i, i, i, i, i, i, i));
    uint rows = table_rows();
    int expert = i < rows * R ? ids[ids_at + i] : -1;
    if (expert < 0)
        return t;
    t.expert = uint(expert);
    if (LID < MOST_GROUPED / 32u)
        chosen_rows[LID] = 0u;
    barrier();
    for (uint row = LID; row < rows; row += ITEMS)
        for (uint pair = row * R; pair < row * R + R; pair++)
            if (ids[ids_at + pair] == expert) {
                pairs_of_rows[row] = pair;
                atomicOr(chosen_rows[row / 32u], 1u << (row % 32u));
            }
    barrier();
    uint own = i / R, before = 0u;
    for (uint row = 0u; row < own; row++)
        before += (chosen_rows[row / 32u] >> (row % 32u)) & 1u;
    if (before % ROWS != 0u)
        return t;
    for (uint row = own; row < rows && t.rows < ROWS; row++)
        if (((chosen_rows[row / 32u] >> (row % 32u)) & 1u) != 0u)
            t.pairs[t.rows++] = pairs_of_rows[row];
    return t;
}
