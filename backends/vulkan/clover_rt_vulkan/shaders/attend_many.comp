#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// attend for rows of one sequence: a group for `rows_each` rows, up to VECTORS query vectors of one
// KV head, and one of `splits` parts of the keys, which it reads once.
//
// Keys go in tiles of 64. 16 items are a team with 4 vectors: an item has their products with 4
// keys, and 4 QUADS columns of their results. Keys go through local memory 16 columns at a time,
// whose products are added up before they join the others: large logits need sums with few steps.
// Values go through it 8 at a time, with their shares. The softmax is as in attend, and so is what
// becomes of the results. Local memory: README.md.
layout(local_size_x = 256, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY = 256;
layout(constant_id = 2) const uint KV_BF16 = 0;
layout(constant_id = 3) const uint HAS_GATE = 1;
layout(push_constant) uniform Push
{
    uint params_at, q_at, k_at, v_at, page_table_at, k_pool_at, v_pool_at, gate_at, y_at, parts_at,
        segments, row_segment, G, each, slot_pages, rows_each, heads_each, splits;
};
READS(0, uint, params)
READS(1, float, q)
READS(4, uint, page_table)
#define NAME k
#define BINDING 2
#define POOL_BINDING 5
#include "cached.glsl"
#define NAME v
#define BINDING 3
#define POOL_BINDING 6
#include "cached.glsl"
READS(7, float, gate)
WRITES(8, float, y)
WRITES(9, float, parts)
#include "table.glsl"
#include "segment.glsl"
#include "pages.glsl"
#define VECTORS (ITEMS / 4u)
#define TILE 64u
#define TEAM 16u
// columns of keys, and values, that lie in local memory at a time
#define SLICE 16u
#define VALUES 8u
// the first of the item's vectors, and the item in their team
#define VECTOR (LID / TEAM * 4u)
#define LANE (LID % TEAM)
const uint QUADS = (KEY + 63u) / 64u;
const uint WIDTH = 64u * QUADS;
const uint KEYS_ROOM = SLICE * (VECTORS + TILE);
const uint VALUES_ROOM = VALUES * (VECTORS + WIDTH);
// [column][vector] and [column][key]; then a team's peaks or sums, [item][vector]; then
// [value][vector] and [value][column]
shared float room[KEYS_ROOM > VALUES_ROOM ? KEYS_ROOM : VALUES_ROOM];
shared float peaks[VECTORS];
shared float totals[VECTORS];
shared float shrinks[VECTORS];
// where the tile's keys lie, in rows of the pools or of the operands
shared uint places[TILE];

vec4 four_at(uint i)
{
    return vec4(room[i], room[i + 1u], room[i + 2u], room[i + 3u]);
}

// column c of the item's
uint column_at(uint c)
{
    return c / 4u * 64u + 4u * LANE + c % 4u;
}

void main()
{
    uint blocks = gl_NumWorkGroups.y / G, group = gl_WorkGroupID.y / blocks;
    uint head0 = group * each + gl_WorkGroupID.y % blocks * heads_each, split = gl_WorkGroupID.z;
    uint heads = min(heads_each, (group + 1u) * each - head0);
    uint start = gl_WorkGroupID.x * rows_each, stop = min(start + rows_each, table_rows());
    float scale = 1.0 / sqrt(float(KEY));
    for (uint row = start; row < stop;) {
        Segment s = segment_at(table(row_segment + row));
        uint rows = min(stop, s.row0 + s.rows) - row, vectors = rows * heads;
        // a causal row sees itself and what is before it
        uint seen = s.kind == PREVIEW ? s.rows : row - s.row0 + 1u;
        uint step = s.kind == PREVIEW ? 0u : 1u;
        uint keys = s.position + seen + step * (rows - 1u), tiles = (keys + TILE - 1u) / TILE;
        uint share = (tiles + splits - 1u) / splits;
        // the vector whose numbers the item brings
        uint brought = LID % VECTORS;
        uint from = q_at + ((row + brought / heads) * G * each + head0 + brought % heads) * KEY;
        if (LID < VECTORS) {
            peaks[LID] = MINUS_INFINITY;
            totals[LID] = 0.0;
        }
        vec4 mixed[4u * QUADS];
        [[unroll]] for (uint i = 0u; i < 4u * QUADS; i++)
            mixed[i] = vec4(0.0);
        barrier();
        uint end = min(tiles, (split + 1u) * share);
        for (uint tile = split * share; tile < end; tile++) {
            uint key0 = tile * TILE, count = min(TILE, keys - key0);
            if (LID < count) {
                uint key = key0 + LID;
                places[LID] = key >= s.position ? (s.row0 + key - s.position) | OWN
                                                : pool_row(s.slot, key);
            }
            barrier();
            vec4 dots[4] = vec4[4](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
            [[dont_unroll]] for (uint k0 = 0u; k0 < KEY; k0 += SLICE) {
                [[unroll]] for (uint j = 0u; j < 4u; j++) {
                    uint column = LID / VECTORS * 4u + j;
                    bool is_there = brought < vectors && k0 + column < KEY;
                    float x = is_there ? q[from + k0 + column] * scale : 0.0;
                    room[column * VECTORS + brought] = x;
                }
                for (uint i = LID; i < TILE * SLICE / 4u; i += ITEMS) {
                    uint key = i % TILE, column = i / TILE * 4u;
                    vec4 x = vec4(0.0);
                    if (key < count)
                        x = four_of_k(places[key], group, k0 + column);
                    [[unroll]] for (uint j = 0u; j < 4u; j++)
                        room[SLICE * VECTORS + (column + j) * TILE + key] = x[j];
                }
                barrier();
                vec4 sums[4] = vec4[4](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
                for (uint column = 0u; column < SLICE; column++) {
                    vec4 w = four_at(column * VECTORS + VECTOR);
                    vec4 x = four_at(SLICE * VECTORS + column * TILE + 4u * LANE);
                    [[unroll]] for (uint i = 0u; i < 4u; i++)
                        sums[i] = fma(vec4(w[i]), x, sums[i]);
                }
                [[unroll]] for (uint i = 0u; i < 4u; i++)
                    dots[i] += sums[i];
                barrier();
            }
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                uint m = VECTOR + i, until = s.position + seen + step * (m / heads);
                float top = MINUS_INFINITY;
                [[unroll]] for (uint j = 0u; j < 4u; j++) {
                    if (m >= vectors || key0 + 4u * LANE + j >= until)
                        dots[i][j] = MINUS_INFINITY;
                    top = max(top, dots[i][j]);
                }
                room[LANE * VECTORS + VECTOR + i] = top;
            }
            barrier();
            if (LID < VECTORS) {
                float top = peaks[LID];
                for (uint i = 0u; i < TEAM; i++)
                    top = max(top, room[i * VECTORS + LID]);
                shrinks[LID] = is_minus_infinity(top) ? 1.0 : exp_of(peaks[LID] - top);
                peaks[LID] = top;
            }
            barrier();
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                float peak = peaks[VECTOR + i], shrink = shrinks[VECTOR + i], sum = 0.0;
                [[unroll]] for (uint j = 0u; j < 4u; j++) {
                    float logit = dots[i][j];
                    dots[i][j] = is_minus_infinity(logit) ? 0.0 : exp_of(logit - peak);
                    sum += dots[i][j];
                }
                room[LANE * VECTORS + VECTOR + i] = sum;
                [[unroll]] for (uint c = 0u; c < QUADS; c++)
                    mixed[i * QUADS + c] *= shrink;
            }
            barrier();
            if (LID < VECTORS) {
                float sum = totals[LID] * shrinks[LID];
                for (uint i = 0u; i < TEAM; i++)
                    sum += room[i * VECTORS + LID];
                totals[LID] = sum;
            }
            barrier();
            for (uint first = 0u; first < count; first += VALUES) {
                if (LANE * 4u / VALUES == first / VALUES)
                    [[unroll]] for (uint j = 0u; j < 4u; j++)
                        [[unroll]] for (uint i = 0u; i < 4u; i++)
                            room[(LANE * 4u % VALUES + j) * VECTORS + VECTOR + i] = dots[i][j];
                for (uint i = LID; i < VALUES * WIDTH / 4u; i += ITEMS) {
                    uint value = i / (WIDTH / 4u), column = i % (WIDTH / 4u) * 4u;
                    vec4 x = vec4(0.0);
                    if (first + value < count)
                        x = four_of_v(places[first + value], group, column);
                    [[unroll]] for (uint j = 0u; j < 4u; j++)
                        room[VALUES * VECTORS + 4u * i + j] = x[j];
                }
                barrier();
                for (uint value = 0u; value < VALUES; value++) {
                    vec4 w = four_at(value * VECTORS + VECTOR);
                    [[unroll]] for (uint c = 0u; c < QUADS; c++) {
                        uint column = 64u * c + 4u * LANE;
                        vec4 x = four_at(VALUES * VECTORS + value * WIDTH + column);
                        [[unroll]] for (uint i = 0u; i < 4u; i++)
                            mixed[i * QUADS + c] = fma(vec4(w[i]), x, mixed[i * QUADS + c]);
                    }
                }
                barrier();
            }
        }
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint m = VECTOR + i;
            if (m >= vectors)
                continue;
            uint vector = (row + m / heads) * G * each + head0 + m % heads;
            uint part = parts_at + (vector * splits + split) * (KEY + 2u);
            [[unroll]] for (uint c = 0u; c < 4u * QUADS; c++) {
                uint column = column_at(c);
                float found = mixed[i * QUADS + c / 4u][c % 4u];
                if (column < KEY && splits > 1u)
                    parts[part + column] = found;
                else if (column < KEY)
                    y[y_at + vector * KEY + column] = found / totals[m];
            }
            if (splits > 1u && LANE == 0u) {
                parts[part + KEY] = peaks[m];
                parts[part + KEY + 1u] = totals[m];
            }
            if (splits > 1u || HAS_GATE == 0u)
                continue;
            // not unrolled, and so apart: sigmoids are long
            [[dont_unroll]] for (uint c = 0u; c < 4u * QUADS; c++) {
                uint column = column_at(c), at = vector * KEY + column;
                if (column < KEY)
                    y[y_at + at] *= sigmoid(gate[gate_at + at]);
            }
        }
        barrier();
        row += rows;
    }
}
