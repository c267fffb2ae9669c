// round_rows: rows rounded to 8 bits, a work-item a block of 32 numbers: 8 words of codes, the
// scale (the largest of the block / 127) and the sum of the codes. A block that is not finite gets
// the scale NaN and spoils what it is multiplied with. `each` is the rows of x for a row of the
// table. NIBBLES: each word has the even or the odd columns of eight, else four neighbours.
kernel GROUP_OF(64) void round_rows(global const int *table, global const float *x,
                                    global uint *rounded, int K, int each)
{
    int place = get_global_id(0);
    long row = get_global_id(1), block = row * (K / 32) + place;
    if (place >= K / 32 || row >= (long)table[TABLE_ROWS] * each)
        return;
    float largest = 0.0f;
    int is_finite = 1;
    for (int i = 0; i < 32; i++) {
        float size = fabs(x[32 * block + i]);
        is_finite &= isfinite(size) != 0;
        largest = fmax(largest, size);
    }
    // of a block below the smallest normal numbers nothing is left
    float factor = is_finite && largest > 1e-30f ? 127.0f / largest : 0.0f;
    global uint *to = rounded + 10 * block;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        float8 numbers = is_finite ? vload8(4 * block + i, x) : (float8)(0.0f);
        int8 codes = convert_int8_rte(numbers * factor);
        int4 added = codes.lo + codes.hi;
        sum += added.s0 + added.s1 + added.s2 + added.s3;
#if NIBBLES
        codes = codes.s02461357;
#endif
        to[2 * i] = as_uint(convert_char4(codes.lo));
        to[2 * i + 1] = as_uint(convert_char4(codes.hi));
    }
    to[8] = as_uint(is_finite ? largest / 127.0f : NAN);
    to[9] = as_uint((float)sum);
}
