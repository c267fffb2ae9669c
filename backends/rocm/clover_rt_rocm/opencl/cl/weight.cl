// Eight neighbouring numbers of a weight's row as float32; zeros past the end of the row.
//
// Compiled once a weight, with NAME its name, one of CODES_F32, CODES_F16, CODES_BF16, CODES_Q8,
// CODES_Q4 and HAS_ZERO. The bytes lie as clover_rt.spec.Format says; `row` counts from the first
// row of the buffer, k is a multiple of 8. Offsets are 64 bits wide.
#ifndef WEIGHT
#define WEIGHT(n)                                                                                  \
    global const uchar *codes_##n, global const half *scale_##n, global const uchar *zero_##n,     \
        int group_##n
#define GIVEN(n) codes_##n, scale_##n, zero_##n, group_##n
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#endif

float8 JOIN(load8_, NAME)(global const uchar *codes, global const half *scale,
                          global const uchar *zero, int group, long row, int k, int K)
{
#if defined(CODES_Q4)
    uint word = ((global const uint *)(codes + row * (K / 2)))[k / 8];
    long at = row * (K / group) + k / group;
    float factor = vload_half(at, scale);
#if HAS_ZERO
    float offset = zero[at];
#else
    float offset = 8.0f;
#endif
    uint8 bits = ((uint8)(word) >> (uint8)(0, 4, 8, 12, 16, 20, 24, 28)) & (uint8)(15u);
    return (convert_float8(bits) - offset) * factor;
#elif defined(CODES_Q8)
    char8 bits = vload8(0, (global const char *)codes + row * K + k);
    return convert_float8(bits) * vload_half(row * (K / 32) + k / 32, scale);
#else
#if defined(CODES_F32)
    global const float *from = (global const float *)codes + row * K + k;
#define ONE(i) from[i]
#define EIGHT vload8(0, from)
#elif defined(CODES_F16)
    global const half *from = (global const half *)codes + row * K + k;
#define ONE(i) vload_half(i, from)
#define EIGHT vload_half8(0, from)
#else
    global const ushort *from = (global const ushort *)codes + row * K + k;
#define ONE(i) from_bf16(from[i])
#define EIGHT as_float8(convert_uint8(vload8(0, from)) << (uint8)(16u))
#endif
    if (k + 8 <= K)
        return EIGHT;
    float8 found = (float8)(0.0f);
    int left = K - k;
    if (left > 0) found.s0 = ONE(0);
    if (left > 1) found.s1 = ONE(1);
    if (left > 2) found.s2 = ONE(2);
    if (left > 3) found.s3 = ONE(3);
    if (left > 4) found.s4 = ONE(4);
    if (left > 5) found.s5 = ONE(5);
    if (left > 6) found.s6 = ONE(6);
    return found;
#undef ONE
#undef EIGHT
#endif
}
