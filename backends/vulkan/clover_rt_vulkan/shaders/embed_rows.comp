#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// embed_rows: an item for eight numbers of a row. Dispatched once a part of the table: ids first ..
// first + count - 1; the first dispatch also writes zeros for ids that are in no part.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(push_constant) uniform Push
{
    uint params_at, embed_at, embed_scale_at, embed_zero_at, h_at, tokens, D, vocab, first, count;
};
READS(0, uint, params)
#define NAME embed
#define CAPS EMBED
#define BINDING 1
#define CONSTANT 1
#include "weight.glsl"
WRITES(4, float, h)
#include "table.glsl"

void main()
{
    uint row = gl_WorkGroupID.y, k = gl_GlobalInvocationID.x * 8u;
    if (row >= table_rows() || k >= D)
        return;
    // a negative id is a large one here
    uint token = table(tokens + row);
    bool is_known = token < vocab;
    if (is_known ? token < first || token - first >= count : first > 0u)
        return;
    Eight found = Eight(vec4(0.0), vec4(0.0));
    float scale = 0.0;
    if (is_known) {
        Block block = block_embed(token - first, k / 32u * 32u, D);
        found = eight_embed(block, token - first, k / 32u * 32u, k / 8u % 4u, D);
        scale = block.scale;
    }
    uint to = h_at + row * D + k;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        if (k + i < D)
            h[to + i] = found.a[i] * scale;
        if (k + 4u + i < D)
            h[to + 4u + i] = found.b[i] * scale;
    }
}
