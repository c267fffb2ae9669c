#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// moe: norm, gate, up and silu on up to ROWS rows of a routed expert, or of the one that all
// rows share. Groups are those of the pairs (pairs.glsl), then those of the rows. Tiles and sums:
// few.glsl.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
layout(push_constant) uniform Push
{
    uint params_at, ids_at, x_at, norm_at, routed_at, routed_scale_at, routed_zero_at, every_at,
        every_scale_at, every_zero_at, hidden_at, R, K, F, Fs, pairs, first, count;
    float eps;
};
READS(0, uint, params)
READS(1, int, ids)
READS(3, float, norm)
#define NORMED
#define FROM x
#define ROWS_BINDING 2
#define NAME routed
#define CAPS ROUTED
#define BINDING 4
#define CONSTANT 3
#include "weight.glsl"
#include "rows.glsl"
#include "few.glsl"
#include "few_of.glsl"
#undef NAME
#undef CAPS
#define NAME every
#define CAPS EVERY
#define BINDING 7
#define CONSTANT 6
#include "weight.glsl"
#include "few_of.glsl"
WRITES(10, float, hidden)
#include "table.glsl"
#include "pairs.glsl"

// a routed expert's rows of gate and of up lie one behind the other
void routed_rows(uint column0)
{
    Tile t = tile_of(gl_WorkGroupID.y);
    if (t.rows == 0u || t.expert < first || t.expert - first >= count || column0 >= F)
        return;
    uint starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(t.pairs[min(m, t.rows - 1u)] / R, K);
    uint row = 2u * (t.expert - first) * F, own = row + column0 + TEAM_COLUMN;
    uint last = row + F - 1u;
    vec2 g = few_sums(few_routed(own, last, K, starts, t.rows), t.rows);
    vec2 u = few_sums(few_routed(own + F, last + F, K, starts, t.rows), t.rows);
    uint column = column0 + LID % COLUMNS;
    [[unroll]] for (uint step = 0u; step < STEPS; step++) {
        uint m = step * STEP + LID / COLUMNS;
        if (m < t.rows && column < F)
            hidden[hidden_at + t.pairs[m] * F + column] = silu(g[step]) * u[step];
    }
}

void rows_of_all(uint row0, uint column0)
{
    if (row0 >= table_rows() || column0 >= Fs)
        return;
    uint rows = min(table_rows() - row0, ROWS), starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(row0 + min(m, rows - 1u), K);
    uint own = column0 + TEAM_COLUMN;
    vec2 g = few_sums(few_every(own, Fs - 1u, K, starts, rows), rows);
    vec2 u = few_sums(few_every(own + Fs, 2u * Fs - 1u, K, starts, rows), rows);
    uint column = column0 + LID % COLUMNS, to = hidden_at + pairs * F + row0 * Fs + column;
    [[unroll]] for (uint step = 0u; step < STEPS; step++) {
        uint m = step * STEP + LID / COLUMNS;
        if (m < rows && column < Fs)
            hidden[to + m * Fs] = silu(g[step]) * u[step];
    }
}

void main()
{
    uint i = gl_WorkGroupID.y, column0 = gl_WorkGroupID.x * COLUMNS;
    if (i < pairs)
        routed_rows(column0);
    else
        rows_of_all((i - pairs) * ROWS, column0);
}
