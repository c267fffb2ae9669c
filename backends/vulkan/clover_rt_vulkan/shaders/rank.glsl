// Order of numbers as unsigned keys: larger numbers have larger keys, equal ones (0 and -0 too)
// equal keys, NaN is below -inf, and NO_KEY is below all. Needs KEYS, the size of `keys`.
#define NO_KEY 0u

shared uint keys[KEYS];

uint key_of(float x)
{
    if (is_nan(x))
        return 1u;
    uint bits = floatBitsToUint(x);
    if (bits == 0x80000000u)
        bits = 0u;
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

// the number of a key that is not NaN's
float number_of(uint key)
{
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key);
}

// how many of `count` keys come before key i; of equal ones those of lower index do
uint rank_of(uint count, uint i)
{
    uint own = keys[i], before = 0u;
    for (uint j = 0u; j < count; j++)
        before += uint(keys[j] > own || (keys[j] == own && j < i));
    return before;
}
