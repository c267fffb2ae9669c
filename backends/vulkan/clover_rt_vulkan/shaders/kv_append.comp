#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// kv_append: an item for a word of k and of v: one number, or two of bf16. Preview rows are left
// out.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint KV_BF16 = 0;
layout(push_constant) uniform Push
{
    uint params_at, k_at, v_at, page_table_at, k_pool_at, v_pool_at, segments, row_segment, width,
        slot_pages;
};
READS(0, uint, params)
READS(1, float, k)
READS(2, float, v)
READS(3, uint, page_table)
WRITES(4, uint, k_pool)
WRITES(5, uint, v_pool)
#include "table.glsl"
#include "segment.glsl"
#include "pages.glsl"

void main()
{
    uint words = KV_BF16 != 0u ? width / 2u : width;
    uint word = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (word >= words || row >= table_rows())
        return;
    Segment s = segment_at(table(row_segment + row));
    if (s.kind == PREVIEW)
        return;
    uint to = pool_row(s.slot, s.position + row - s.row0) * words + word;
    if (KV_BF16 != 0u) {
        uint from = row * width + 2u * word;
        k_pool[k_pool_at + to] = to_bf16(k[k_at + from]) | to_bf16(k[k_at + from + 1u]) << 16;
        v_pool[v_pool_at + to] = to_bf16(v[v_at + from]) | to_bf16(v[v_at + from + 1u]) << 16;
    } else {
        uint from = row * width + word;
        k_pool[k_pool_at + to] = floatBitsToUint(k[k_at + from]);
        v_pool[v_pool_at + to] = floatBitsToUint(v[v_at + from]);
    }
}
