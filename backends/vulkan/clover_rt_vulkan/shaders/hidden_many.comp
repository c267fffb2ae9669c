#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// expert_gemm: gate, up and silu on up to 32 rows of an expert. Tiles and sums: many.glsl.
layout(local_size_x = 128) in;
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
#define TILES 2u
#include "many.glsl"
#include "many_of.glsl"
#undef NAME
#undef CAPS
#define NAME up
#define CAPS UP
#define BINDING 7
#define CONSTANT 6
#include "weight.glsl"
#include "many_of.glsl"
WRITES(10, float, hidden)
#include "table.glsl"
#define MOST_ROWS TILE_ROWS
#include "tile.glsl"

void main()
{
    Tile t = tile_at(gl_WorkGroupID.y);
    uint column0 = gl_WorkGroupID.x * TILE_COLUMNS;
    if (t.rows == 0u || column0 >= F)
        return;
    uint start = start_of(pair_at(t.start + min(LID % TILE_ROWS, t.rows - 1u)) / top_k, D);
    uint row = t.expert * F + column0, last = t.expert * F + F - 1u;
    vec4 g[4] = NO_SUMS, u[4] = NO_SUMS;
    for (uint k = 0u; k < D; k += DEPTH) {
        stage_rows(start, k, D);
        stage_gate(0u, row, last, k, D);
        stage_up(1u, row, last, k, D);
        barrier();
        add_tile(0u, g);
        add_tile(1u, u);
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint m = ROW_FOUR * 4u + i;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint column = column0 + COLUMN_FOUR * 4u + j;
            if (m < t.rows && column < F)
                hidden[hidden_at + (t.start + m) * F + column] = silu(g[i][j]) * u[i][j];
        }
    }
}
