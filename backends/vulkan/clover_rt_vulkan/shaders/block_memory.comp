#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// block_memory: a group for a preview row and a value head. Keys go in tiles of ITEMS, one an item;
// an item has COLUMNS columns of the result. The softmax is rescaled from tile to tile; the history
// slot is added last. Local memory: q and 2 ITEMS numbers.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY = 128;
layout(constant_id = 2) const uint COLUMNS = 2;
layout(push_constant) uniform Push
{
    uint params_at, qkv_at, g_at, S_at, logit_scale_at, history_bias_at, history_c_at, o_at,
        segments, row_segment, G, H, V;
};
READS(0, uint, params)
READS(1, float, qkv)
READS(2, float, g)
READS(3, float, S)
READS(4, float, logit_scale)
READS(5, float, history_bias)
READS(6, float, history_c)
WRITES(7, float, o)
#include "reduce.glsl"
#include "table.glsl"
#include "segment.glsl"
shared float query[KEY];
shared float shares[ITEMS];

void main()
{
    uint h = gl_WorkGroupID.x, row = gl_WorkGroupID.y, head = h / (H / G);
    if (row >= table_rows())
        return;
    Segment s = segment_at(table(row_segment + row));
    if (s.kind != PREVIEW)
        return;
    uint width = 2u * G * KEY + H * V, own = qkv_at + row * width + head * KEY;
    uint k = qkv_at + s.row0 * width + (G + head) * KEY;
    uint v = qkv_at + s.row0 * width + 2u * G * KEY + h * V;
    float sum = 0.0;
    for (uint i = LID; i < KEY; i += ITEMS)
        sum = fma(qkv[own + i], qkv[own + i], sum);
    float root = sqrt(sum_of_items(sum) + 1e-6);
    for (uint i = LID; i < KEY; i += ITEMS)
        query[i] = qkv[own + i] / root;
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
                dots = fma(query[i], x, dots);
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
    total += history;
    float weight = history * exp_of(g[g_at + row * H + h]) / sqrt(float(KEY));
    uint memory = S_at + (s.slot * H + h) * KEY * V;
    [[unroll]] for (uint c = 0u; c < COLUMNS; c++) {
        uint column = LID + ITEMS * c;
        if (column < V) {
            float read = 0.0;
            for (uint i = 0u; i < KEY; i++)
                read = fma(S[memory + i * V + column], query[i], read);
            o[o_at + (row * H + h) * V + column] = fma(weight, read, mixed[c]) / total;
        }
    }
}
