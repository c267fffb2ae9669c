#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// linear: up to 4 rows times a weight, plus a residual. Tiles and sums: few.glsl. SIZED (heads_few):
// the rows are what gdn_scan leaves.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
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
#include "few.glsl"
#include "few_of.glsl"
#include "table.glsl"

void main()
{
    uint row0 = gl_WorkGroupID.y * ROWS, column0 = gl_WorkGroupID.x * COLUMNS;
    if (row0 >= table_rows() || column0 >= count)
        return;
    uint rows = min(table_rows() - row0, ROWS), starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(row0 + min(m, rows - 1u), K);
    float total = few_sums(few_w(column0 + TEAM_COLUMN, count - 1u, K, starts, rows), rows).x;
    uint row = LID / COLUMNS, column = column0 + LID % COLUMNS;
    if (row < rows && column < count) {
        uint to = (row0 + row) * N + first + column;
        if (HAS_RESIDUAL != 0u)
            total += residual[residual_at + to];
        y[y_at + to] = total;
    }
}
