#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// expert_gemm: down on up to 32 hidden rows of an expert. Tiles and sums: many.glsl.
layout(local_size_x = 128) in;
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
#include "many.glsl"
#include "many_of.glsl"
WRITES(7, float, y)
#include "table.glsl"
#define MOST_ROWS TILE_ROWS
#include "tile.glsl"

void main()
{
    Tile t = tile_at(gl_WorkGroupID.y);
    uint column0 = gl_WorkGroupID.x * TILE_COLUMNS;
    if (t.rows == 0u || column0 >= D)
        return;
    uint start = start_of(t.start + min(LID % TILE_ROWS, t.rows - 1u), F);
    uint row = t.expert * D + column0, last = t.expert * D + D - 1u;
    vec4 sums[4] = NO_SUMS;
    for (uint k = 0u; k < F; k += DEPTH) {
        stage_rows(start, k, F);
        stage_down(0u, row, last, k, F);
        barrier();
        add_tile(0u, sums);
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint m = ROW_FOUR * 4u + i;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint column = column0 + COLUMN_FOUR * 4u + j;
            if (m < t.rows && column < D)
                y[y_at + pair_at(t.start + m) * D + column] = sums[i][j];
        }
    }
}
