#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// linear: rows times a weight, plus a residual. Tiles and sums: many.glsl. SIZED (heads_many): the
// rows are what gdn_scan leaves.
layout(local_size_x = 128) in;
layout(constant_id = 2) const uint HAS_RESIDUAL = 0;
#ifdef SIZED
layout(constant_id = 6) const uint HEAD = 128;
#endif
layout(push_constant) uniform Push
{
    uint params_at, x_at, w_at, w_scale_at, w_zero_at, residual_at, y_at, SCALES_AT K, N, first,
        count;
#ifdef SIZED
    uint splits;
    float eps;
#endif
};
READS(0, uint, params)
#define NAME w
#define CAPS W
#define BINDING 2
#define CONSTANT 3
#include "weight.glsl"
READS(5, float, residual)
WRITES(6, float, y)
#define FROM x
#define ROWS_BINDING 1
#define SCALES_BINDING 7
#ifdef SIZED
READS(7, float, sizes)
#endif
#include "rows.glsl"
#include "many.glsl"
#include "many_of.glsl"
#include "table.glsl"

void main()
{
    uint row0 = gl_WorkGroupID.y * TILE_ROWS, column0 = gl_WorkGroupID.x * TILE_COLUMNS;
    if (row0 >= table_rows() || column0 >= count)
        return;
    uint rows = min(table_rows() - row0, TILE_ROWS);
    uint start = start_of(row0 + min(LID % TILE_ROWS, rows - 1u), K);
    vec4 sums[4] = NO_SUMS;
    for (uint k = 0u; k < K; k += DEPTH) {
        stage_rows(start, k, K);
        stage_w(0u, column0, count - 1u, k, K);
        barrier();
        add_tile(0u, sums);
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint row = ROW_FOUR * 4u + i;
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint column = column0 + COLUMN_FOUR * 4u + j;
            if (row < rows && column < count) {
                uint to = (row0 + row) * N + first + column;
                float total = sums[i][j];
                if (HAS_RESIDUAL != 0u)
                    total += residual[residual_at + to];
                y[y_at + to] = total;
            }
        }
    }
}
