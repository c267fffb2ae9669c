#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// moe: down on up to ROWS hidden rows of a routed expert, or of the one that all rows share. Groups
// are those of moe_hidden_few. Tiles and sums: few.glsl.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
layout(push_constant) uniform Push
{
    uint params_at, ids_at, hidden_at, routed_at, routed_scale_at, routed_zero_at, every_at,
        every_scale_at, every_zero_at, y_at, R, D, F, Fs, pairs, first, count;
};
READS(0, uint, params)
READS(1, int, ids)
#define FROM hidden
#define ROWS_BINDING 2
#define NAME routed
#define CAPS ROUTED
#define BINDING 3
#define CONSTANT 3
#include "weight.glsl"
#include "rows.glsl"
#include "few.glsl"
#include "few_of.glsl"
#undef NAME
#undef CAPS
#define NAME every
#define CAPS EVERY
#define BINDING 6
#define CONSTANT 6
#include "weight.glsl"
#include "few_of.glsl"
WRITES(9, float, y)
#include "table.glsl"
#include "pairs.glsl"

void routed_rows(uint column0)
{
    Tile t = tile_of(gl_WorkGroupID.y);
    if (t.rows == 0u || t.expert < first || t.expert - first >= count)
        return;
    uint starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(t.pairs[min(m, t.rows - 1u)], F);
    uint row = (t.expert - first) * D, own = row + column0 + TEAM_COLUMN;
    vec2 sums = few_sums(few_routed(own, row + D - 1u, F, starts, t.rows), t.rows);
    uint column = column0 + LID % COLUMNS;
    [[unroll]] for (uint step = 0u; step < STEPS; step++) {
        uint m = step * STEP + LID / COLUMNS;
        if (m < t.rows && column < D)
            y[y_at + t.pairs[m] * D + column] = sums[step];
    }
}

void rows_of_all(uint row0, uint column0)
{
    if (row0 >= table_rows())
        return;
    uint rows = min(table_rows() - row0, ROWS), starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(row0 + min(m, rows - 1u), Fs) + pairs * F;
    vec2 sums = few_sums(few_every(column0 + TEAM_COLUMN, D - 1u, Fs, starts, rows), rows);
    uint column = column0 + LID % COLUMNS;
    [[unroll]] for (uint step = 0u; step < STEPS; step++) {
        uint m = step * STEP + LID / COLUMNS;
        if (m < rows && column < D)
            y[y_at + (pairs + row0 + m) * D + column] = sums[step];
    }
}

void main()
{
    uint i = gl_WorkGroupID.y, column0 = gl_WorkGroupID.x * COLUMNS;
    if (i < pairs)
        routed_rows(column0);
    else
        rows_of_all((i - pairs) * ROWS, column0);
}
