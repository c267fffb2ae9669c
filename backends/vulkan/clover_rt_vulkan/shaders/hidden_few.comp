#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// expert_gemm: gate, up and silu on up to 4 rows of an expert. Tiles and sums: few.glsl.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
layout(constant_id = 2) const uint GROUPED = 1;
layout(push_constant) uniform Push
{
    uint params_at, tiles_at, order_at, x_at, gate_at, gate_scale_at, gate_zero_at, up_at,
        up_scale_at, up_zero_at, hidden_at, SCALES_AT top_k, D, F, first, count;
};
READS(0, uint, params)
READS(1, uint, tiles)
READS(2, uint, order)
#define FROM x
#define ROWS_BINDING 3
#define SCALES_BINDING 11
#define NAME gate
#define CAPS GATE
#define BINDING 4
#define CONSTANT 3
#include "weight.glsl"
#include "rows.glsl"
#include "few.glsl"
#include "few_of.glsl"
#undef NAME
#undef CAPS
#define NAME up
#define CAPS UP
#define BINDING 7
#define CONSTANT 6
#include "weight.glsl"
#include "few_of.glsl"
WRITES(10, float, hidden)
#include "table.glsl"
#define MOST_ROWS ROWS
#include "tile.glsl"

void main()
{
    Tile t = tile_at(gl_WorkGroupID.y);
    uint column0 = gl_WorkGroupID.x * COLUMNS;
    if (t.rows == 0u || column0 >= F)
        return;
    uint starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(pair_at(t.start + min(m, t.rows - 1u)) / top_k, D);
    uint row = t.expert * F + column0 + TEAM_COLUMN, last = t.expert * F + F - 1u;
    float g = few_sums(few_gate(row, last, D, starts, t.rows), t.rows).x;
    float u = few_sums(few_up(row, last, D, starts, t.rows), t.rows).x;
    uint m = LID / COLUMNS, column = column0 + LID % COLUMNS;
    if (m < t.rows && column < F)
        hidden[hidden_at + (t.start + m) * F + column] = silu(g) * u;
}
