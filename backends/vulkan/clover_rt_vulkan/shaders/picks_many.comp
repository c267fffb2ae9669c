#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// confidence_topk: the logits of up to 32 wanted rows for 128 ids, then picks.glsl. Logits stay in
// local memory. Tiles and sums: many.glsl. Local memory: 29 KiB.
layout(local_size_x = 128) in;
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
#include "many.glsl"
#include "many_of.glsl"
#define PICK_ROWS 32
#include "picks.glsl"

void main()
{
    uint column0 = gl_WorkGroupID.x * IDS;
    if (wanted0 >= table_wanted() || column0 >= count)
        return;
    uint rows = min(table_wanted() - wanted0, TILE_ROWS), ids = min(count - column0, IDS);
    uint start = start_of(table(wanted + 8u * (wanted0 + min(LID % TILE_ROWS, rows - 1u))), D);
    for (uint c = 0u; c < ids; c += TILE_COLUMNS) {
        vec4 sums[4] = NO_SUMS;
        for (uint k = 0u; k < D; k += DEPTH) {
            stage_rows(start, k, D);
            stage_head(0u, column0 + c, count - 1u, k, D);
            barrier();
            add_tile(0u, sums);
            barrier();
        }
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            [[unroll]] for (uint j = 0u; j < 4u; j++)
                logits[(ROW_FOUR * 4u + i) * IDS + c + COLUMN_FOUR * 4u + j] = sums[i][j];
    }
    pick(0u, rows, column0, ids);
}
