// Keys or values, four columns at a time: NAME is `k` or `v`, numbers of the operand or (a word has
// two where KV_BF16 is set) of the pool.
//
// Included behind the push constants, once a name, with BINDING the operand's binding and
// POOL_BINDING the pool's; needs KEY and KV_BF16.
#ifndef CACHED
#define CACHED
// bit of a place that is a row of the operands
#define OWN 0x80000000u

// what a number is in the cache
float rounded(float x)
{
    return KV_BF16 != 0u ? from_bf16(to_bf16(x)) : x;
}

float pooled(uint word, uint i)
{
    return KV_BF16 != 0u ? from_bf16(half_of(word, i)) : uintBitsToFloat(word);
}
#endif

#define POOL JOIN(NAME, _pool)
#define START JOIN(NAME, _at)
#define POOL_START JOIN(POOL, _at)
READS(BINDING, float, NAME)
READS(POOL_BINDING, uint, POOL)
READS_QUADS(POOL_BINDING, uvec4, POOL)

// columns `column` .. + 3 of a place's row of a KV head; zeros past its end
vec4 JOIN(four_of_, NAME)(uint place, uint group, uint column)
{
    uint at = ((place & ~OWN) * G + group) * KEY + column;
    vec4 found = vec4(0.0);
    if ((place & OWN) != 0u || KEY % 4u != 0u) {
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            uint i = at + j;
            if (column + j >= KEY)
                continue;
            if ((place & OWN) != 0u)
                found[j] = rounded(NAME[START + i]);
            else
                found[j] = pooled(POOL[POOL_START + (KV_BF16 != 0u ? i / 2u : i)], i);
        }
    } else if (column < KEY) {
        if (KV_BF16 == 0u)
            return uintBitsToFloat(JOIN(POOL, _quads)[(POOL_START + at) / 4u]);
        uint word = POOL_START + at / 2u;
        uvec2 two = uvec2(POOL[word], POOL[word + 1u]), even = two << 16, odd = two & 0xffff0000u;
        found = uintBitsToFloat(uvec4(even.x, odd.x, even.y, odd.y));
    }
    return found;
}
#undef POOL
#undef START
#undef POOL_START
#undef NAME
#undef BINDING
#undef POOL_BINDING
