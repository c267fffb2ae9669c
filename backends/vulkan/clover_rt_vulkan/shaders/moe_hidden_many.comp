#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// moe: norm, gate, up and silu on up to 32 rows of a routed expert, or of the one that all rows
// share. Groups are those of `most` listed tiles (tile.glsl), then those of the rows. Tiles and
// sums: many.glsl. Local memory: 21 KiB.
layout(local_size_x = 128) in;
layout(push_constant) uniform Push
{
    uint params_at, tiles_at, order_at, x_at, norm_at, routed_at, routed_scale_at, routed_zero_at,
        every_at, every_scale_at, every_zero_at, hidden_at, R, K, F, Fs, pairs, most, first,
        count;
    float eps;
};
READS(0, uint, params)
READS(1, uint, tiles)
READS(2, uint, order)
READS(4, float, norm)
#define NORMED
#define FROM x
#define ROWS_BINDING 3
#define TILES 2u
#define NAME routed
#define CAPS ROUTED
#define BINDING 5
#define CONSTANT 3
#include "weight.glsl"
#include "rows.glsl"
#include "many.glsl"
#include "many_of.glsl"
#undef NAME
#undef CAPS
#define NAME every
#define CAPS EVERY
#define BINDING 8
#define CONSTANT 6
#include "weight.glsl"
#include "many_of.glsl"
WRITES(11, float, hidden)
#include "table.glsl"
#define GROUPED 1u
#define MOST_ROWS TILE_ROWS
#include "tile.glsl"

void main()
{
    bool is_routed = gl_WorkGroupID.y < most;
    uint width = is_routed ? F : Fs, column0 = gl_WorkGroupID.x * TILE_COLUMNS;
    Tile t = is_routed ? tile_at(gl_WorkGroupID.y) : tile_of_rows(gl_WorkGroupID.y - most);
    if (t.rows == 0u || column0 >= width)
        return;
    uint place = t.start + min(LID % TILE_ROWS, t.rows - 1u);
    uint start = start_of(is_routed ? pair_at(place) / R : place, K);
    // rows of gate, then those of up
    uint row = 2u * t.expert * width, last = row + width - 1u;
    vec4 g[4] = NO_SUMS, u[4] = NO_SUMS;
    for (uint k = 0u; k < K; k += DEPTH) {
        stage_rows(start, k, K);
        if (is_routed) {
            stage_routed(0u, row + column0, last, k, K);
            stage_routed(1u, row + width + column0, last + width, k, K);
        } else {
            stage_every(0u, row + column0, last, k, K);
            stage_every(1u, row + width + column0, last + width, k, K);
        }
        barrier();
        add_tile(0u, g);
        add_tile(1u, u);
        barrier();
    }
    keep_squares();
    uint to = hidden_at + (is_routed ? 0u : pairs * F) + t.start * width;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint m = ROW_FOUR * 4u + i;
        float norm_here = norm_of(m);
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint column = column0 + COLUMN_FOUR * 4u + j;
            if (m < t.rows && column < width)
                hidden[to + m * width + column] = silu(g[i][j] / norm_here) * (u[i][j] / norm_here);
        }
    }
}
