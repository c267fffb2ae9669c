#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// project: rms_norm of up to 4 rows, times up to four weights, in one format or two. Tiles and sums:
// few.glsl; what becomes of the sums: parts.glsl.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
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
#include "few.glsl"
#include "few_of.glsl"
#undef NAME
#undef CAPS
#define NAME other
#define CAPS OTHER
#define BINDING 6
#define CONSTANT 6
#include "weight.glsl"
#include "few_of.glsl"
#include "table.glsl"
#include "parts.glsl"

void main()
{
    Columns own = columns_at(gl_WorkGroupID.x, COLUMNS);
    uint row0 = gl_WorkGroupID.y * ROWS;
    if (row0 >= table_rows() || own.start >= own.count)
        return;
    uint rows = min(table_rows() - row0, ROWS), starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(row0 + min(m, rows - 1u), K);
    uint team_row = own.start + TEAM_COLUMN, last = own.count - 1u;
    float total;
    if (own.is_other)
        total = few_sums(few_other(team_row, last, K, starts, rows), rows).x;
    else
        total = few_sums(few_w(team_row, last, K, starts, rows), rows).x;
    uint row = LID / COLUMNS, column = own.start + LID % COLUMNS;
    if (row < rows && column < own.count)
        put(row0 + row, own.first + column, total);
}
