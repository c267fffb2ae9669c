#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// project: rms_norm of rows, times up to four weights. Tiles and sums: many.glsl; what becomes of
// the sums: parts.glsl.
layout(local_size_x = 128) in;
layout(constant_id = 2) const uint GATES = 0;
layout(push_constant) uniform Push
{
    uint params_at, x_at, norm_at, w_at, w_scale_at, w_zero_at, rate_at, bias_at, y_at, K, N, end0,
        end1, end2, first, count, T;
    float eps;
};
READS(0, uint, params)
READS(2, float, norm)
#define NORMED
#define FROM x
#define ROWS_BINDING 1
#define NAME w
#define CAPS W
#define BINDING 3
#define CONSTANT 3
#include "weight.glsl"
#include "rows.glsl"
READS(6, float, rate)
READS(7, float, bias)
WRITES(8, float, y)
#include "many.glsl"
#include "many_of.glsl"
#include "table.glsl"
#include "parts.glsl"

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
        stage_w(column0, count - 1u, k, K);
        barrier();
        add_w(sums);
        barrier();
    }
    squares_room[LID] = own_squares;
    barrier();
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint row = ROW_FOUR * 4u + i;
        float norm_here = norm_of(row);
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint column = column0 + COLUMN_FOUR * 4u + j;
            if (row < rows && column < count)
                put(row0 + row, first + column, sums[i][j] / norm_here);
        }
    }
}
