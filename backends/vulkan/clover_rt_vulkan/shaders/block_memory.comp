#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// block_memory: a group for up to ROWS rows of a preview and a value head: they share what is read of
// the memory. Row by row, keys go in tiles of ITEMS, one an item; an item has COLUMNS columns of the
// result. The softmax is rescaled from tile to tile, and waits in o for the history slot, which is
// added last. Local memory: ROWS (K + 2) and 2 ITEMS numbers. GATED: what is mixed is gated as in
// gdn_scan, and the first of a head's `splits` sizes has all of its sum.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY = 128;
layout(constant_id = 2) const uint COLUMNS = 2;
layout(constant_id = 3) const uint GATED = 1;
layout(constant_id = 4) const uint ROWS = 8;
layout(push_constant) uniform Push
{
    uint params_at, qkv_at, g_at, S_at, logit_scale_at, history_bias_at, history_c_at, z_at,
        norm_at, o_at, sizes_at, segments, row_segment, G, H, V, splits;
};
READS(0, uint, params)
READS(1, float, qkv)
READS(2, float, g)
READS(3, float, S)
READS(4, float, logit_scale)
READS(5, float, history_bias)
READS(6, float, history_c)
READS(7, float, z)
READS(8, float, norm)
WRITES(9, float, o)
WRITES(10, float, sizes)
#include "reduce.glsl"
#include "table.glsl"
#include "segment.glsl"
shared float queries[ROWS * KEY];
shared float shares[ITEMS];
// of each row: what its reading of the memory weighs, and what everything weighs
shared float weights[ROWS];
shared float totals[ROWS];

// the block's part of a row, row m of the group's: its sum over keys goes to o
void mix(Segment s, uint h, uint row, uint m)
{
    uint head = h / (H / G), width = 2u * G * KEY + H * V, own = qkv_at + row * width + head * KEY;
    uint k = qkv_at + s.row0 * width + (G + head) * KEY, query = m * KEY;
    uint v = qkv_at + s.row0 * width + 2u * G * KEY + h * V;
    float sum = 0.0;
    for (uint i = LID; i < KEY; i += ITEMS)
        sum = fma(qkv[own + i], qkv[own + i], sum);
    float root = sqrt(sum_of_items(sum) + 1e-6);
    for (uint i = LID; i < KEY; i += ITEMS)
        queries[query + i] = qkv[own + i] / root;
    barrier();

    float peak = history_bias[history_bias_at + h] +
                 history_c[history_c_at + h] * log_of(float(s.rows) / 32.0);
    float history = 1.0, total = 0.0, mixed[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++)
        mixed[c] = 0.0;
    for (uint first = 0u; first < s.rows; first += ITEMS) {
        uint n = min(ITEMS, s.rows - first);
        float logit = MINUS_INFINITY;
        if (LID < n) {
            uint key = k + (first + LID) * width;
            float dots = 0.0, squares = 0.0;
            for (uint i = 0u; i < KEY; i++) {
                float x = qkv[key + i];
                dots = fma(queries[query + i], x, dots);
                squares = fma(x, x, squares);
            }
            logit = dots / sqrt(squares + 1e-6) * logit_scale[logit_scale_at + h];
        }
        float top = max(peak, max_of_items(logit)), shrink = exp_of(peak - top);
        float share = LID < n ? exp_of(logit - top) : 0.0;
        shares[LID] = share;
        history *= shrink;
        total = total * shrink + sum_of_items(share);
        peak = top;
        [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
            uint column = LID + ITEMS * c;
            mixed[c] *= shrink;
            if (column < V)
                for (uint i = 0u; i < n; i++)
                    mixed[c] = fma(shares[i], qkv[v + (first + i) * width + column], mixed[c]);
        }
        barrier();
    }
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
        uint column = LID + ITEMS * c;
        if (column < V)
            o[o_at + (row * H + h) * V + column] = mixed[c];
    }
    if (LID == 0u) {
        weights[m] = history * exp_of(g[g_at + row * H + h]) / sqrt(float(KEY));
        totals[m] = total + history;
    }
}

// the history slot of `rows` rows from `row` on; `memory` is where the head's memory starts
void recall(uint memory, uint h, uint row, uint rows)
{
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
        uint column = LID + ITEMS * c;
        if (column < V) {
            float reads[ROWS];
            [[unroll]] for (uint m = 0u; m < ROWS; m++)
                reads[m] = 0.0;
            for (uint i = 0u; i < KEY; i++) {
                float x = S[memory + i * V + column];
                [[unroll]] for (uint m = 0u; m < ROWS; m++)
                    reads[m] = fma(x, queries[m * KEY + i], reads[m]);
            }
            [[unroll]] for (uint m = 0u; m < ROWS; m++) {
                uint to = o_at + ((row + m) * H + h) * V + column;
                if (m < rows)
                    o[to] = fma(weights[m], reads[m], o[to]) / totals[m];
            }
        }
    }
}

void gate(uint h, uint row)
{
    uint to = (row * H + h) * V;
    float own_squares = 0.0;
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
        uint column = LID + ITEMS * c;
        if (column < V) {
            float found = o[o_at + to + column];
            own_squares = fma(found, found, own_squares);
            o[o_at + to + column] = found * (norm[norm_at + column] * silu(z[z_at + to + column]));
        }
    }
    float squares = sum_of_items(own_squares);
    for (uint i = LID; i < splits; i += ITEMS)
        sizes[sizes_at + (row * H + h) * splits + i] = i == 0u ? squares : 0.0;
}

void main()
{
    uint h = gl_WorkGroupID.x, start = gl_WorkGroupID.y * ROWS;
    uint stop = min(start + ROWS, table_rows());
    for (uint row = start; row < stop;) {
        Segment s = segment_at(table(row_segment + row));
        uint rows = min(stop, s.row0 + s.rows) - row;
        if (s.kind == PREVIEW) {
            for (uint m = 0u; m < rows; m++)
                mix(s, h, row + m, m);
            barrier();
            recall(S_at + (s.slot * H + h) * KEY * V, h, row, rows);
            if (GATED != 0u)
                for (uint m = 0u; m < rows; m++)
                    gate(h, row + m);
            barrier();
        }
        row += rows;
    }
}
