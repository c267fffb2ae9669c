#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// moe: down on up to 32 hidden rows of a routed expert, or of the one that all rows share. Groups
// are those of moe_hidden_many. Tiles and sums: many.glsl.
layout(local_size_x = 128) in;
layout(push_constant) uniform Push
{
    uint params_at, tiles_at, order_at, hidden_at, routed_at, routed_scale_at, routed_zero_at,
        every_at, every_scale_at, every_zero_at, y_at, D, F, Fs, pairs, most, first, count;
};
READS(0, uint, params)
READS(1, uint, tiles)
READS(2, uint, order)
#define FROM hidden
#define ROWS_BINDING 3
#define NAME routed
#define CAPS ROUTED
#define BINDING 4
#define CONSTANT 3
#include "weight.glsl"
#include "rows.glsl"
#include "many.glsl"
#include "many_of.glsl"
#undef NAME
#undef CAPS
#define NAME every
#define CAPS EVERY
#define BINDING 7
#define CONSTANT 6
#include "weight.glsl"
#include "many_of.glsl"
WRITES(10, float, y)
#include "table.glsl"
#define GROUPED 1u
#define MOST_ROWS TILE_ROWS
#include "tile.glsl"

void main()
{
    bool is_routed = gl_WorkGroupID.y < most;
    uint width = is_routed ? F : Fs, column0 = gl_WorkGroupID.x * TILE_COLUMNS;
    Tile t = is_routed ? tile_at(gl_WorkGroupID.y) : tile_of_rows(gl_WorkGroupID.y - most);
    if (t.rows == 0u || column0 >= D)
        return;
    uint start = start_of(t.start + min(LID % TILE_ROWS, t.rows - 1u), width);
    start += is_routed ? 0u : pairs * F;
    uint row = t.expert * D + column0, last = t.expert * D + D - 1u;
    vec4 sums[4] = NO_SUMS;
    for (uint k = 0u; k < width; k += DEPTH) {
        stage_rows(start, k, width);
        if (is_routed)
            stage_routed(0u, row, last, k, width);
        else
            stage_every(0u, row, last, k, width);
        barrier();
        add_tile(0u, sums);
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint m = ROW_FOUR * 4u + i;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint column = column0 + COLUMN_FOUR * 4u + j, place = t.start + m;
            if (m < t.rows && column < D)
                y[y_at + (is_routed ? pair_at(place) : pairs + place) * D + column] = sums[i][j];
        }
    }
}
