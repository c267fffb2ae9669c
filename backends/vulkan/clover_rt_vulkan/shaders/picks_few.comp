#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// confidence_topk: the logits of up to 4 wanted rows for 128 ids, then picks.glsl. Logits stay in
// local memory. Tiles and sums: few.glsl.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint ROWS = 4;
layout(push_constant) uniform Push
{
    uint params_at, h_at, head_at, head_scale_at, head_zero_at, counts_at, suppressed_at, picks_at,
        best_ids_at, best_at, stats_at, SCALES_AT segments, controls, wanted, tokens, D, vocab,
        first, count, wanted0, top;
};
READS(0, uint, params)
#define FROM h
#define ROWS_BINDING 1
#define SCALES_BINDING 11
#define NAME head
#define CAPS HEAD
#define BINDING 2
#define CONSTANT 2
#include "weight.glsl"
READS(5, uint, counts)
READS(6, uint, suppressed)
WRITES(7, uint, picks)
WRITES(8, uint, best_ids)
WRITES(9, float, best)
WRITES(10, float, stats)
#include "table.glsl"
#include "rows.glsl"
#include "few.glsl"
#include "few_of.glsl"
#define PICK_ROWS ROWS
#include "picks.glsl"

void main()
{
    uint tile_row0 = gl_WorkGroupID.y * ROWS, column0 = gl_WorkGroupID.x * IDS;
    if (wanted0 + tile_row0 >= table_wanted() || column0 >= count)
        return;
    uint rows = min(table_wanted() - wanted0 - tile_row0, ROWS), ids = min(count - column0, IDS);
    uint starts[ROWS];
    [[unroll]] for (uint m = 0u; m < ROWS; m++)
        starts[m] = start_of(table(wanted + 8u * (wanted0 + tile_row0 + min(m, rows - 1u))), D);
    for (uint c = 0u; c < ids; c += COLUMNS) {
        uint row = column0 + c + TEAM_COLUMN;
        float total = few_sums(few_head(row, count - 1u, D, starts, rows), rows).x;
        if (LID < ROWS * COLUMNS)
            logits[LID / COLUMNS * IDS + c + LID % COLUMNS] = total;
    }
    pick(tile_row0, rows, column0, ids);
}
