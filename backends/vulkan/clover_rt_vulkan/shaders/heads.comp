#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// heads: norm and rotation of the query and key heads of a row, and its rows of the cache; a group
// for a head: queries first, then keys, then values, which only go to the cache. Sums as in
// rms_norm.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KEY = 256;
layout(constant_id = 2) const uint KV_BF16 = 0;
layout(push_constant) uniform Push
{
    uint params_at, q_raw_at, k_raw_at, v_at, q_norm_at, k_norm_at, angles_at, page_table_at, q_at,
        k_at, k_pool_at, v_pool_at, segments, row_segment, H, G, r, slot_pages;
    float eps;
};
READS(0, uint, params)
READS(1, float, q_raw)
READS(2, float, k_raw)
READS(3, float, v)
READS(4, float, q_norm)
READS(5, float, k_norm)
READS(6, float, angles)
READS(7, uint, page_table)
WRITES(8, float, q)
WRITES(9, float, k)
WRITES(10, uint, k_pool)
WRITES(11, uint, v_pool)
#include "reduce.glsl"
#include "table.glsl"
#include "segment.glsl"
#include "pages.glsl"
shared float raw[KEY];
shared float turned[KEY];

// what `raw` is with the rotation of a place; `raw` is normalised
float turn(uint i, uint place)
{
    if (i >= 2u * r)
        return raw[i];
    uint angle = angles_at + (place * r + i % r) * 2u;
    float other = i < r ? -raw[i + r] : raw[i - r];
    return raw[i] * angles[angle] + other * angles[angle + 1u];
}

// a word of the cache: one number, or two of bf16
uint cached(uint word)
{
    if (KV_BF16 == 0u)
        return floatBitsToUint(turned[word]);
    return to_bf16(turned[2u * word]) | to_bf16(turned[2u * word + 1u]) << 16;
}

void main()
{
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    if (row >= table_rows())
        return;
    Segment s = segment_at(table(row_segment + row));
    uint place = s.position + row - s.row0;
    bool is_query = head < H, is_key = !is_query && head < H + G;
    uint group = is_query ? 0u : (head - H) % G;
    uint from = is_query ? (row * H + head) * KEY : (row * G + group) * KEY;
    float own = 0.0;
    for (uint i = LID; i < KEY; i += ITEMS) {
        float number = is_query ? q_raw[q_raw_at + from + i]
                       : is_key ? k_raw[k_raw_at + from + i]
                                : v[v_at + from + i];
        raw[i] = number;
        own = fma(number, number, own);
    }
    float rms = sqrt(sum_of_items(own) / float(KEY) + eps);
    if (is_query || is_key)
        for (uint i = LID; i < KEY; i += ITEMS)
            raw[i] = raw[i] / rms * (is_query ? q_norm[q_norm_at + i] : k_norm[k_norm_at + i]);
    barrier();
    for (uint i = LID; i < KEY; i += ITEMS) {
        float number = is_query || is_key ? turn(i, place) : raw[i];
        turned[i] = number;
        if (is_query)
            q[q_at + from + i] = number;
        else if (is_key)
            k[k_at + from + i] = number;
    }
    barrier();
    if (is_query || s.kind == PREVIEW)
        return;
    uint words = KV_BF16 != 0u ? KEY / 2u : KEY;
    uint to = (pool_row(s.slot, place) * G + group) * words;
    for (uint i = LID; i < words; i += ITEMS) {
        if (is_key)
            k_pool[k_pool_at + to + i] = cached(i);
        else
            v_pool[v_pool_at + to + i] = cached(i);
    }
}
