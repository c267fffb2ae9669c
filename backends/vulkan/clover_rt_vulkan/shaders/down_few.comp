#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// expert_gemm: down on up to 4 hidden rows of an expert. Tiles and sums: few.glsl.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
layout(constant_id = 2) const uint GROUPED = 1;
layout(push_constant) uniform Push
{
    uint params_at, tiles_at, order_at, hidden_at, down_at, down_scale_at, down_zero_at, y_at,
        SCALES_AT D, F, first, count;
};
READS(0, uint, params)
READS(1, uint, tiles)
READS(2, uint, order)
#define FROM hidden
#define ROWS_BINDING 3
#define SCALES_BINDING 8
#define NAME down
#define CAPS DOWN
#define BINDING 4
#define CONSTANT 3
#include "weight.glsl"
#include "rows.glsl"
#include "few.glsl"
#include "few_of.glsl"
WRITES(7, float, y)
#include "table.glsl"
#define MOST_ROWS ROWS
#include "tile.glsl"

void main()
{
    Tile t = tile_at(gl_WorkGroupID.y);
    uint column0 = gl_WorkGroupID.x * COLUMNS;
    if (t.rows == 0u || column0 >= D)
        return;
    uint starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(t.start + min(m, t.rows - 1u), F);
    uint row = t.expert * D + column0 + TEAM_COLUMN, last = t.expert * D + D - 1u;
    float total = few_sums(few_down(row, last, F, starts, t.rows), t.rows).x;
    uint m = LID / COLUMNS, column = column0 + LID % COLUMNS;
    if (m < t.rows && column < D)
        y[y_at + pair_at(t.start + m) * D + column] = total;
}
