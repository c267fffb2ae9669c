#version 460
#extension GL_GOOGLE_include_directive : require
#include "base.glsl"
// quantise_rows: rows rounded to 8 bits in blocks of 32, an item a block: codes are x / scale to
// the nearest, scale is the largest of the block / 127. Scale and sum of codes lie in `scales`.
layout(local_size_x = 64, local_size_x_id = 0) in;
layout(constant_id = 1) const uint NIBBLES = 0;
layout(push_constant) uniform Push
{
    uint params_at, x_at, codes_at, scales_at, K, each;
};
READS(0, uint, params)
READS_QUADS(1, vec4, x)
WRITES(2, uint, codes)
WRITES(3, float, scales)
#include "table.glsl"

void main()
{
    uint row = gl_WorkGroupID.y, place = gl_GlobalInvocationID.x, blocks = K / 32u;
    if (place >= blocks || row >= table_rows() * each)
        return;
    uint block = row * blocks + place;
    vec4 numbers[8];
    float largest = 0.0;
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        numbers[i] = x_quads[x_at / 4u + 8u * block + i];
        vec4 sizes = abs(numbers[i]);
        largest = max(largest, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
    }
    float scale = largest / 127.0, factor = largest > 0.0 ? 127.0 / largest : 0.0;
    int sum = 0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        ivec4 a = ivec4(roundEven(numbers[2u * i] * factor));
        ivec4 b = ivec4(roundEven(numbers[2u * i + 1u] * factor));
        sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
        ivec4 first = NIBBLES != 0u ? ivec4(a.x, a.z, b.x, b.z) : a;
        ivec4 second = NIBBLES != 0u ? ivec4(a.y, a.w, b.y, b.w) : b;
        uvec4 low = uvec4(first) & 0xffu, high = uvec4(second) & 0xffu;
        uint to = codes_at + 8u * block + 2u * i;
        codes[to] = low.x | low.y << 8 | low.z << 16 | low.w << 24;
        codes[to + 1u] = high.x | high.y << 8 | high.z << 16 | high.w << 24;
    }
    // a block that is not finite has scale NaN or inf and spoils what it goes into
    scales[scales_at + 2u * block] = is_finite(largest) ? scale : A_NAN;
    scales[scales_at + 2u * block + 1u] = float(sum);
}
