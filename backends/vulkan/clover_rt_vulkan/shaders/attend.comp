#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// attend: a group for `rows_each` rows, up to VECTORS query vectors of one KV head, and one of
// `splits` parts of the keys; the vectors share every key and value that is read.
//
// Keys go in tiles of ITEMS, one an item; an item has COLUMNS columns of the result. The softmax is
// rescaled from tile to tile, in float32, by a team of ITEMS / VECTORS items a vector. With one
// split the result goes to y, times the sigmoid of `gate` if there is one, else to `parts` (K numbers,
// peak, total), which merge_splits adds up.
// Local memory: README.md.
layout(local_size_x = 128, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY = 256;
layout(constant_id = 2) const uint COLUMNS = 2;
layout(constant_id = 3) const uint VECTORS = 16;
layout(constant_id = 4) const uint KV_BF16 = 0;
layout(constant_id = 5) const uint HAS_GATE = 1;
layout(push_constant) uniform Push
{
    uint params_at, q_at, k_at, v_at, page_table_at, k_pool_at, v_pool_at, gate_at, y_at, parts_at,
        segments, row_segment, G, each, slot_pages, rows_each, heads_each, splits;
};
READS(0, uint, params)
READS(1, float, q)
READS(3, float, v)
READS(4, uint, page_table)
READS(6, uint, v_pool)
READS(7, float, gate)
WRITES(8, float, y)
WRITES(9, float, parts)
#include "table.glsl"
#include "segment.glsl"
#include "pages.glsl"
#define NAME k
#define BINDING 2
#define POOL_BINDING 5
#include "cached.glsl"
const uint QUADS = (KEY + 3u) / 4u;
const uint MIXED = VECTORS * COLUMNS;
shared vec4 queries[VECTORS * QUADS];
shared float shares[VECTORS * ITEMS];
shared float peaks[VECTORS];
shared float totals[VECTORS];
shared float shrinks[VECTORS];
shared float team_room[ITEMS];
// where the tile's keys lie, in rows of the pools or of the operands
shared uint places[ITEMS];

float value_at(uint place, uint group, uint column)
{
    uint n = ((place & ~OWN) * G + group) * KEY + column;
    if ((place & OWN) != 0u)
        return rounded(v[v_at + n]);
    return pooled(v_pool[v_pool_at + (KV_BF16 != 0u ? n / 2u : n)], n);
}

void main()
{
    uint blocks = gl_NumWorkGroups.y / G, group = gl_WorkGroupID.y / blocks;
    uint head0 = group * each + gl_WorkGroupID.y % blocks * heads_each, split = gl_WorkGroupID.z;
    uint heads = min(heads_each, (group + 1u) * each - head0);
    uint start = gl_WorkGroupID.x * rows_each, stop = min(start + rows_each, table_rows());
    uint width = G * each * KEY, team = ITEMS / VECTORS, teams_vector = LID / team;
    float scale = 1.0 / sqrt(float(KEY));
    for (uint row = start; row < stop;) {
        Segment s = segment_at(table(row_segment + row));
        uint rows = min(stop, s.row0 + s.rows) - row, vectors = rows * heads;
        // a causal row sees itself and what is before it
        uint seen = s.kind == PREVIEW ? s.rows : row - s.row0 + 1u;
        uint step = s.kind == PREVIEW ? 0u : 1u;
        uint keys = s.position + seen + step * (rows - 1u), tiles = (keys + ITEMS - 1u) / ITEMS;
        uint share = (tiles + splits - 1u) / splits;
        for (uint i = LID; i < VECTORS * QUADS; i += ITEMS) {
            uint m = i / QUADS, column = i % QUADS * 4u;
            uint from = q_at + (row + m / heads) * width + (head0 + m % heads) * KEY + column;
            vec4 own = vec4(0.0);
            [[unroll]] for (uint j = 0u; j < 4u; j++)
                if (m < vectors && column + j < KEY)
                    own[j] = q[from + j] * scale;
            queries[i] = own;
        }
        if (LID < VECTORS) {
            peaks[LID] = MINUS_INFINITY;
            totals[LID] = 0.0;
        }
        float mixed[MIXED];
        [[unroll]] for (uint i = 0u; i < MIXED; i++)
            mixed[i] = 0.0;
        barrier();
        uint end = min(tiles, (split + 1u) * share);
        for (uint tile = split * share; tile < end; tile++) {
            uint key = tile * ITEMS + LID;
            float dots[VECTORS];
            [[unroll]] for (uint m = 0u; m < VECTORS; m++)
                dots[m] = 0.0;
            if (key < keys) {
                bool is_own = key >= s.position;
                uint place = is_own ? (s.row0 + key - s.position) | OWN : pool_row(s.slot, key);
                places[LID] = place;
                // large logits need sums with few steps: 16 products, then their sums
                for (uint i = 0u; i < QUADS; i += 4u) {
                    float parts_of[VECTORS];
                    [[unroll]] for (uint m = 0u; m < VECTORS; m++)
                        parts_of[m] = 0.0;
                    for (uint j = i; j < min(i + 4u, QUADS); j++) {
                        vec4 x = four_of_k(place, group, 4u * j);
                        [[unroll]] for (uint m = 0u; m < VECTORS; m++) {
                            vec4 w = queries[m * QUADS + j];
                            parts_of[m] = fma(x.x, w.x, parts_of[m]);
                            parts_of[m] = fma(x.y, w.y, parts_of[m]);
                            parts_of[m] = fma(x.z, w.z, parts_of[m]);
                            parts_of[m] = fma(x.w, w.w, parts_of[m]);
                        }
                    }
                    [[unroll]] for (uint m = 0u; m < VECTORS; m++)
                        dots[m] += parts_of[m];
                }
            }
            [[unroll]] for (uint m = 0u; m < VECTORS; m++) {
                bool is_seen = m < vectors && key < s.position + seen + step * (m / heads);
                shares[m * ITEMS + LID] = is_seen ? dots[m] : MINUS_INFINITY;
            }
            barrier();
            float top = MINUS_INFINITY;
            for (uint i = LID % team; i < ITEMS; i += team)
                top = max(top, shares[teams_vector * ITEMS + i]);
            team_room[LID] = top;
            barrier();
            if (LID < VECTORS) {
                top = peaks[LID];
                for (uint i = 0u; i < team; i++)
                    top = max(top, team_room[LID * team + i]);
                shrinks[LID] = is_minus_infinity(top) ? 1.0 : exp_of(peaks[LID] - top);
                peaks[LID] = top;
            }
            barrier();
            float peak = peaks[teams_vector], sum = 0.0;
            for (uint i = LID % team; i < ITEMS; i += team) {
                float logit = shares[teams_vector * ITEMS + i];
                float e = is_minus_infinity(logit) ? 0.0 : exp_of(logit - peak);
                shares[teams_vector * ITEMS + i] = e;
                sum += e;
            }
            team_room[LID] = sum;
            barrier();
            if (LID < VECTORS) {
                sum = totals[LID] * shrinks[LID];
                for (uint i = 0u; i < team; i++)
                    sum += team_room[LID * team + i];
                totals[LID] = sum;
            }
            uint count = min(ITEMS, keys - tile * ITEMS);
            [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
                uint column = LID + ITEMS * c;
                if (column < KEY) {
                    [[unroll]] for (uint m = 0u; m < VECTORS; m++)
                        mixed[m * COLUMNS + c] *= shrinks[m];
                    for (uint i = 0u; i < count; i++) {
                        float x = value_at(places[i], group, column);
                        [[unroll]] for (uint m = 0u; m < VECTORS; m++)
                            mixed[m * COLUMNS + c] =
                                fma(shares[m * ITEMS + i], x, mixed[m * COLUMNS + c]);
                    }
                }
            }
            barrier();
        }
        [[unroll]] for (uint m = 0u; m < VECTORS; m++) {
            if (m < vectors) {
                uint vector = (row + m / heads) * G * each + head0 + m % heads;
                uint part = parts_at + (vector * splits + split) * (KEY + 2u);
                [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
                    uint column = LID + ITEMS * c;
                    if (column < KEY) {
                        float found = mixed[m * COLUMNS + c];
                        uint to = vector * KEY + column;
                        if (splits > 1u)
                            parts[part + column] = found;
                        else if (HAS_GATE != 0u)
                            y[y_at + to] = found / totals[m] * sigmoid(gate[gate_at + to]);
                        else
                            y[y_at + to] = found / totals[m];
                    }
                }
                if (splits > 1u && LID == 0u) {
                    parts[part + KEY] = peaks[m];
                    parts[part + KEY + 1u] = totals[m];
                }
            }
        }
        barrier();
        row += rows;
    }
}
