// Order of numbers as unsigned keys: larger numbers have larger keys, equal ones (0 and -0 too)
// equal keys, NaN is below -inf, and NO_KEY is below all.
#define NO_KEY 0u

uint key_of(float x)
{
    if (isnan(x))
        return 1u;
    uint bits = as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// how many of `count` keys come before key i; of equal ones those of lower index do
int rank_of(local const uint *keys, int count, int i)
{
    uint own = keys[i];
    int before = 0;
    for (int j = 0; j < count; j++)
        before += keys[j] > own || (keys[j] == own && j < i);
    return before;
}
