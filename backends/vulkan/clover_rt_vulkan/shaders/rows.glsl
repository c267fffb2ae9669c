// Rows that are multiplied, float32 or (INT8) rounded to 8 bits in blocks of 32.
//
// Included behind the push constants, with FROM the name of the rows, ROWS_BINDING their buffer's
// and SCALES_BINDING that of `x_scales`, which holds scale and sum of codes of each block of INT8.
// NORMED rows are normalised as they are read: by `norm` here, by their own size where sums end.
// SIZED rows are heads of HEAD columns, a multiple of 32, which are divided by their own sizes:
// the root of `sizes`, the sum of squares in `splits` parts, over HEAD, plus eps.
#ifdef INT8
READS_QUADS(ROWS_BINDING, uvec4, FROM)
READS(SCALES_BINDING, float, x_scales)
// OpSDot, which the compiler has no GLSL name for, and its capabilities
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019],
                  id = 4450) int packed_dot(uint x, uint y, spirv_literal int format);

// the sum of four products of signed bytes
int dot_four(uint x, uint y)
{
    return packed_dot(x, y, 0);
}

// the number of the row's first block
uint start_of(uint row, uint width)
{
    return row * (width / 32u);
}

uvec4 codes_of(uint block, uint high)
{
    return JOIN(FROM, _quads)[JOIN(FROM, _at) / 4u + 2u * block + high];
}

vec2 scale_and_sum(uint block)
{
    uint at = x_scales_at + 2u * block;
    return vec2(x_scales[at], x_scales[at + 1u]);
}
#else
READS(ROWS_BINDING, float, FROM)
READS_QUADS(ROWS_BINDING, vec4, FROM)

// the word that the row starts at
uint start_of(uint row, uint width)
{
    return JOIN(FROM, _at) + row * width;
}

vec4 four_of_row(uint start, uint k, uint width)
{
    vec4 found = vec4(0.0);
    if (RAGGED == 0u && k < width)
        found = JOIN(FROM, _quads)[(start + k) / 4u];
    if (RAGGED != 0u)
        [[unroll]] for (uint i = 0u; i < 4u; i++)
            if (k + i < width)
                found[i] = FROM[start + k + i];
    return found;
}

// columns k .. k + 7 of a row; zeros past its end
Eight eight_of_row(uint start, uint k, uint width)
{
    return Eight(four_of_row(start, k, width), four_of_row(start, k + 4u, width));
}
#ifdef SIZED

// what columns k .. k + 31 of a row are multiplied by
float factor_of(uint start, uint k)
{
    uint at = sizes_at + (start - JOIN(FROM, _at) + k) / HEAD * splits;
    float squares = 0.0;
    for (uint i = 0u; i < splits; i++)
        squares += sizes[at + i];
    return 1.0 / sqrt(squares / float(HEAD) + eps);
}
#endif
#ifdef NORMED

// the same times the norm's weight, with the squares of the row's own numbers added to `squares`
Eight eight_of_row(uint start, uint k, uint width, inout float squares)
{
    Eight x = eight_of_row(start, k, width);
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        squares = fma(x.a[i], x.a[i], squares);
        squares = fma(x.b[i], x.b[i], squares);
        x.a[i] *= k + i < width ? norm[norm_at + k + i] : 0.0;
        x.b[i] *= k + 4u + i < width ? norm[norm_at + k + 4u + i] : 0.0;
    }
    return x;
}
#endif
#endif
