#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// project: rms_norm of up to 4 rows, times up to four weights. Tiles and sums: few.glsl; what
// becomes of the sums: parts.glsl.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
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
#include "few.glsl"
#include "few_of.glsl"
#include "table.glsl"
#include "parts.glsl"

void main()
{
    uint row0 = gl_WorkGroupID.y * ROWS, column0 = gl_WorkGroupID.x * COLUMNS;
    if (row0 >= table_rows() || column0 >= count)
        return;
    uint rows = min(table_rows() - row0, ROWS), starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(row0 + min(m, rows - 1u), K);
    float total = few_sum(few_w(column0 + TEAM_COLUMN, count - 1u, K, starts));
    uint row = LID / COLUMNS, column = column0 + LID % COLUMNS;
    if (row < rows && column < count)
        put(row0 + row, first + column, total);
}
