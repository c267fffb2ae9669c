// A weight's buffers and constants, and its numbers, 32 columns of a row at a time.
//
// Included once a weight, with NAME its name, CAPS its name in capitals, BINDING the first of its
// three buffers and CONSTANT the first of its three constants; needs `NAME_at` and so on. The bytes
// lie as clover_rt.spec.Format says; `row` counts from the first row of the buffers. K is a
// multiple of 32 for q8 and q4. Offsets are in words, so that they fit 32 bits.
#ifndef WEIGHT
#define WEIGHT
#define F32 0u
#define F16 1u
#define BF16 2u
#define Q8 3u
#define Q4 4u
// 1: rows and plain weights have a K that is no multiple of 8, and are read number by number
layout(constant_id = 15) const uint RAGGED = 0;

// codes and scale of 32 columns of q8 (both vectors) and q4 (the first)
struct Block {
    uvec4 low;
    uvec4 high;
    float scale;
    float zero;
};

struct Eight {
    vec4 a;
    vec4 b;
};

// eight numbers of a plain type, from four words of two 16-bit numbers
Eight halves(uvec4 words, bool is_bf16)
{
    uvec4 even = words & 0xffffu, odd = words >> 16u;
    if (is_bf16)
        return Eight(uintBitsToFloat(uvec4(even.x, odd.x, even.y, odd.y) << 16u),
                     uintBitsToFloat(uvec4(even.z, odd.z, even.w, odd.w) << 16u));
    return Eight(vec4(from_half(even.x), from_half(odd.x), from_half(even.y), from_half(odd.y)),
                 vec4(from_half(even.z), from_half(odd.z), from_half(even.w), from_half(odd.w)));
}

vec4 four_bytes(uint word)
{
    int bits = int(word);
    return vec4(bitfieldExtract(bits, 0, 8), bitfieldExtract(bits, 8, 8),
                bitfieldExtract(bits, 16, 8), bitfieldExtract(bits, 24, 8));
}
#endif

#define OF(name) JOIN(name, NAME)
#define THE(name) JOIN(NAME, name)
#define FORMAT JOIN(CAPS, _FORMAT)
#define GROUP JOIN(CAPS, _GROUP)
#define ZERO JOIN(CAPS, _ZERO)
layout(constant_id = CONSTANT) const uint FORMAT = Q4;
layout(constant_id = CONSTANT + 1) const uint GROUP = 32;
layout(constant_id = CONSTANT + 2) const uint ZERO = 0;
layout(set = 0, binding = BINDING, std430) readonly buffer THE(_block)
{
    uint NAME[];
};
layout(set = 0, binding = BINDING, std430) readonly buffer THE(_quads_block)
{
    uvec4 THE(_quads)[];
};
layout(set = 0, binding = BINDING + 1, std430) readonly buffer THE(_scale_block)
{
    uint THE(_scale)[];
};
layout(set = 0, binding = BINDING + 2, std430) readonly buffer THE(_zero_block)
{
    uint THE(_zero)[];
};

// what the columns k .. k + 31 have in common; k is a multiple of 32
Block OF(block_)(uint row, uint k, uint width)
{
    Block b = Block(uvec4(0u), uvec4(0u), 1.0, 0.0);
    if (FORMAT == Q8 || FORMAT == Q4) {
        uint at = row * (width / GROUP) + k / GROUP;
        b.scale = from_half(half_of(THE(_scale)[THE(_scale_at) + at / 2u], at));
        uint place = row * (width / 32u) + k / 32u;
        if (FORMAT == Q4) {
            b.low = THE(_quads)[THE(_at) / 4u + place];
            b.zero = 8.0;
            if (ZERO != 0u)
                b.zero = float(byte_of(THE(_zero)[THE(_zero_at) + at / 4u], at));
        } else {
            b.low = THE(_quads)[THE(_at) / 4u + 2u * place];
            b.high = THE(_quads)[THE(_at) / 4u + 2u * place + 1u];
        }
    }
    return b;
}

// column `column` of a plain weight, or 0 past the end of the row
float OF(one_)(uint row, uint column, uint width)
{
    if (column >= width)
        return 0.0;
    uint i = row * width + column;
    if (FORMAT == F32)
        return uintBitsToFloat(NAME[THE(_at) + i]);
    uint bits = half_of(NAME[THE(_at) + i / 2u], i);
    return FORMAT == BF16 ? from_bf16(bits) : from_half(bits);
}

// the 32 codes of a block of q8 or q4 as signed bytes, four a word. Of q4 each word has the even or
// the odd columns of eight, which is how quantise_rows orders a row's with NIBBLES.
uvec4[2] OF(bytes_)(Block b)
{
    if (FORMAT == Q8)
        return uvec4[2](b.low, b.high);
    uvec4 even = b.low & 0x0f0f0f0fu, odd = (b.low >> 4u) & 0x0f0f0f0fu;
    return uvec4[2](uvec4(even.x, odd.x, even.y, odd.y), uvec4(even.z, odd.z, even.w, odd.w));
}

// columns k + 8 part .. + 7 of a block, to be multiplied by its scale; zeros past the end of the
// row
Eight OF(eight_)(Block b, uint row, uint k, uint part, uint width)
{
    if (FORMAT == Q4) {
        uint word = b.low[part];
        return Eight(vec4(word & 15u, (word >> 4) & 15u, (word >> 8) & 15u, (word >> 12) & 15u) -
                         b.zero,
                     vec4((word >> 16) & 15u, (word >> 20) & 15u, (word >> 24) & 15u, word >> 28) -
                         b.zero);
    }
    if (FORMAT == Q8) {
        uvec4 words = part < 2u ? b.low : b.high;
        uvec2 two = (part & 1u) == 0u ? words.xy : words.zw;
        return Eight(four_bytes(two.x), four_bytes(two.y));
    }
    Eight found = Eight(vec4(0.0), vec4(0.0));
    uint column = k + 8u * part;
    if (RAGGED != 0u) {
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            found.a[i] = OF(one_)(row, column + i, width);
            found.b[i] = OF(one_)(row, column + 4u + i, width);
        }
    } else if (column < width) {
        uint at = row * (width / 8u) + column / 8u;
        if (FORMAT != F32)
            return halves(THE(_quads)[THE(_at) / 4u + at], FORMAT == BF16);
        at = THE(_at) / 4u + 2u * at;
        found.a = uintBitsToFloat(THE(_quads)[at]);
        found.b = uintBitsToFloat(THE(_quads)[at + 1u]);
    }
    return found;
}
#undef OF
#undef THE
#undef FORMAT
#undef GROUP
#undef ZERO
#undef BINDING
#undef CONSTANT
