// Declarations of buffers, and numbers: included first by every shader.
//
// Infinities and NaN are made and told by their bits, and e^x and ln x are written out: drivers may
// assume that the former do not occur, and be off by many units in the last place in the latter.
#extension GL_EXT_control_flow_attributes : require
#ifdef INT8
#extension GL_EXT_spirv_intrinsics : require
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

// a storage buffer of words; `_quads` is the same buffer, four words at a time
#define READS(at, type, name) READS_(at, type, name)
#define READS_QUADS(at, type, name) READS_QUADS_(at, type, name)
#define READS_(at, type, name)                                                                     \
    layout(set = 0, binding = at, std430) readonly buffer name##_block                             \
    {                                                                                              \
        type name[];                                                                               \
    };
#define WRITES(at, type, name)                                                                     \
    layout(set = 0, binding = at, std430) buffer name##_block                                      \
    {                                                                                              \
        type name[];                                                                               \
    };
#define READS_QUADS_(at, type, name)                                                               \
    layout(set = 0, binding = at, std430) readonly buffer name##_quads_block                       \
    {                                                                                              \
        type name##_quads[];                                                                       \
    };

// where the scales of rows of INT8, or the sizes of SIZED ones, start, among the push constants
#if defined(INT8)
#define SCALES_AT x_scales_at,
#elif defined(SIZED)
#define SCALES_AT sizes_at,
#else
#define SCALES_AT
#endif

#define ITEMS gl_WorkGroupSize.x
#define LID gl_LocalInvocationIndex
#define MINUS_INFINITY uintBitsToFloat(0xff800000u)
#define A_NAN uintBitsToFloat(0x7fc00000u)

bool is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool is_finite(float x)
{
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}

bool is_minus_infinity(float x)
{
    return floatBitsToUint(x) == 0xff800000u;
}

// e^x for x <= 0 (0 below -86.6), within 1.5 units in the last place
float exp_of(float x)
{
    if (is_nan(x))
        return x;
    if (x < -86.6)
        return 0.0;
    precise float n = roundEven(x * 1.44269504);
    precise float r = x - n * 0.693359375 + n * 2.12194440e-4;
    precise float p = 1.9875691500e-4;
    p = fma(p, r, 1.3981999507e-3);
    p = fma(p, r, 8.3334519073e-3);
    p = fma(p, r, 4.1665795894e-2);
    p = fma(p, r, 1.6666665459e-1);
    p = fma(p, r, 5.0000001201e-1);
    precise float y = fma(p, r * r, r) + 1.0;
    return y * uintBitsToFloat(uint(int(n) + 127) << 23);
}

// ln((1 + t) / (1 - t)) for 0 <= |t| <= 1/3
float twice_atanh(float t)
{
    precise float square = t * t;
    precise float p = 1.0 / 17.0;
    p = fma(p, square, 1.0 / 15.0);
    p = fma(p, square, 1.0 / 13.0);
    p = fma(p, square, 1.0 / 11.0);
    p = fma(p, square, 1.0 / 9.0);
    p = fma(p, square, 1.0 / 7.0);
    p = fma(p, square, 1.0 / 5.0);
    p = fma(p, square, 1.0 / 3.0);
    precise float twice = 2.0 * t;
    return fma(twice * square, p, twice);
}

// ln x of a normal number above 0; what is no number stays as it is
float log_of(float x)
{
    if (!is_finite(x))
        return x;
    uint bits = floatBitsToUint(x);
    int n = int(bits >> 23) - 127;
    float m = uintBitsToFloat((bits & 0x007fffffu) | 0x3f800000u);
    if (m > 1.41421356) {
        m *= 0.5;
        n++;
    }
    precise float low = twice_atanh((m - 1.0) / (m + 1.0)) - float(n) * 2.12194440e-4;
    return low + float(n) * 0.693359375;
}

// ln(1 + x) for 0 <= x <= 1
float log1p_of(float x)
{
    return twice_atanh(x / (2.0 + x));
}

float sigmoid(float x)
{
    float e = exp_of(-abs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

float silu(float x)
{
    return x * sigmoid(x);
}

// a bfloat16 number, and the nearest one to a float32 (ties to even, NaN stays NaN)
float from_bf16(uint bits)
{
    return uintBitsToFloat(bits << 16);
}

uint to_bf16(float x)
{
    uint bits = floatBitsToUint(x);
    if (is_nan(x))
        return (bits >> 16) | 0x40u;
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

// a finite float16 number, small ones too, which `unpackHalf2x16` may take for 0
float from_half(uint bits)
{
    uint exponent = bits & 0x7c00u;
    float size = exponent == 0u ? float(bits & 0x03ffu) * 5.9604645e-8
                                : uintBitsToFloat(((bits & 0x7fffu) << 13) + 0x38000000u);
    return (bits & 0x8000u) != 0u ? -size : size;
}

// one of the two 16-bit numbers, or of the four bytes, of a word; `i` counts them in the buffer
uint half_of(uint word, uint i)
{
    return (word >> (16u * (i & 1u))) & 0xffffu;
}

uint byte_of(uint word, uint i)
{
    return (word >> (8u * (i & 3u))) & 0xffu;
}
