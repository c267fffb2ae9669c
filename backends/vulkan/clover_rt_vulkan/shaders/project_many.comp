#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// project: rms_norm of rows, times up to four weights, in one format or two. Tiles and sums:
// many.glsl; what becomes of the sums: parts.glsl.
layout(local_size_x = 128) in;
layout(constant_id = 2) const uint GATES = 0;
layout(constant_id = 9) const uint HAS_OTHER = 1;
layout(push_constant) uniform Push
{
    uint params_at, x_at, norm_at, w_at, w_scale_at, w_zero_at, other_at, other_scale_at,
        other_zero_at, rate_at, bias_at, y_at, K, N, end0, end1, end2, first, count, other_first,
        other_count, T;
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
READS(9, float, rate)
READS(10, float, bias)
WRITES(11, float, y)
#include "many.glsl"
#include "many_of.glsl"
#undef NAME
#undef CAPS
#define NAME other
#define CAPS OTHER
#define BINDING 6
#define CONSTANT 6
#include "weight.glsl"
#include "many_of.glsl"
#include "table.glsl"
#include "parts.glsl"

void main()
{
    Columns own = columns_at(gl_WorkGroupID.x, TILE_COLUMNS);
    uint row0 = gl_WorkGroupID.y * TILE_ROWS;
    if (row0 >= table_rows() || own.start >= own.count)
        return;
    uint rows = min(table_rows() - row0, TILE_ROWS);
    uint start = start_of(row0 + min(LID % TILE_ROWS, rows - 1u), K);
    vec4 sums[4] = NO_SUMS;
    for (uint k = 0u; k < K; k += DEPTH) {
        stage_rows(start, k, K);
        if (own.is_other)
            stage_other(0u, own.start, own.count - 1u, k, K);
        else
            stage_w(0u, own.start, own.count - 1u, k, K);
        barrier();
        add_tile(0u, sums);
        barrier();
    }
    keep_squares();
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        uint row = ROW_FOUR * 4u + i;
        float norm_here = norm_of(row);
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint column = own.start + COLUMN_FOUR * 4u + j;
            if (row < rows && column < own.count)
                put(row0 + row, own.first + column, sums[i][j] / norm_here);
        }
    }
}
