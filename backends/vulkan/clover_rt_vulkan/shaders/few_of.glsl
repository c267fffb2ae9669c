// The part of few.glsl that knows the weight: included behind its weight.glsl, with the same NAME.

// an item's sums of the first `rows` rows that start at `starts`, times weight rows `row` ..
// row + 3, at most `last`
float[SUMS] JOIN(few_, NAME)(uint row, uint last, uint width, uint starts[ROWS], uint rows)
{
    float sums[SUMS];
    [[unroll]] for (uint i = 0u; i < SUMS; i++)
        sums[i] = 0.0;
    for (uint k = LID % LANES * 32u; k < width; k += LANES * 32u) {
        Block blocks[4];
        [[unroll]] for (uint c = 0u; c < 4u; c++)
            blocks[c] = JOIN(block_, NAME)(min(row + c, last), k, width);
        [[unroll]] for (uint step = 0u; step < STEPS; step++) {
            if (step > 0u && step * STEP >= rows)
                continue;
            uint m0 = step * STEP;
#ifdef INT8
            [[unroll]] for (uint m = m0; m < m0 + STEP; m++) {
                uint own = starts[m] + k / 32u;
                uvec4 low = codes_of(own, 0u), high = codes_of(own, 1u);
                vec2 about = scale_and_sum(own);
                [[unroll]] for (uint c = 0u; c < 4u; c++) {
                    uvec4 words[2] = JOIN(bytes_, NAME)(blocks[c]);
                    int sum = 0;
                    [[unroll]] for (uint i = 0u; i < 4u; i++)
                        sum += dot_four(low[i], words[0][i]) + dot_four(high[i], words[1][i]);
                    float part = float(sum) - blocks[c].zero * about.y;
                    sums[4u * m + c] = fma(part, blocks[c].scale * about.x, sums[4u * m + c]);
                }
            }
#else
            float parts[4u * STEP];
            [[unroll]] for (uint i = 0u; i < 4u * STEP; i++)
                parts[i] = 0.0;
#ifdef NORMED
#define OWN_SQUARES , sums[4u * ROWS + m0 + m]
#else
#define OWN_SQUARES
#endif
            for (uint part = 0u; part < 4u; part++) {
                Eight xs[STEP];
                [[unroll]] for (uint m = 0u; m < STEP; m++)
                    xs[m] = eight_of_row(starts[m0 + m], k + 8u * part, width OWN_SQUARES);
                [[unroll]] for (uint c = 0u; c < 4u; c++) {
                    Eight w = JOIN(eight_, NAME)(blocks[c], min(row + c, last), k, part, width);
                    [[unroll]] for (uint m = 0u; m < STEP; m++)
                        parts[4u * m + c] = add_eight(parts[4u * m + c], xs[m], w);
                }
            }
#ifdef SIZED
            [[unroll]] for (uint m = 0u; m < STEP; m++) {
                float factor = factor_of(starts[m0 + m], k);
                [[unroll]] for (uint c = 0u; c < 4u; c++)
                    parts[4u * m + c] *= factor;
            }
#endif
            [[unroll]] for (uint i = 0u; i < 4u * STEP; i++)
                sums[4u * m0 + i] = fma(parts[i], blocks[i % 4u].scale, sums[4u * m0 + i]);
#undef OWN_SQUARES
#endif
        }
    }
    return sums;
}
