"""Formulas that several kernels share, from basic operations alone, so that bits are the same on
every machine: exp, logarithms, sums over lanes in a fixed order."""

from __future__ import annotations

from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.values import F32, F64, I32, I64, Value

# e^r on |r| <= ln 2 / 2, as in the Cephes library: below 2 units in the last place
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def exp(code: Code, x: Value) -> Value:
    """Return e^x of float32: 0 below -104, infinity above 88.8, NaN of NaN."""
    x = code.select(x > 89.0, 89.0, x)
    x = code.select(x < -105.0, -105.0, x)
    n = code.intrinsic("rint", x * 1.44269504088896341)
    r = code.fma(n, code.like(-0.693359375, n), x)
    r = code.fma(n, code.like(2.12194440e-4, n), r)
    p = code.like(_EXP[0], r)
    for c in _EXP[1:]:
        p = code.fma(p, r, code.like(c, r))
    y = code.fma(p * r, r, r) + 1.0
    # in two factors, so that results below the smallest normal number are rounded, not lost
    whole = n.to(I32)
    half = whole.sar(1)
    return y * _power(half) * _power(whole - half)


def _power(n: Value) -> Value:
    return ((n + 127) << 23).bits(F32)


def sigmoid(code: Code, x: Value) -> Value:
    return 1.0 / (1.0 + exp(code, 0.0 - x))


def silu(code: Code, x: Value) -> Value:
    return x / (1.0 + exp(code, 0.0 - x))


def softplus(code: Code, x: Value) -> Value:
    """Return ln(1 + e^x) of float32."""
    positive = code.select(x < 0.0, 0.0, x)
    u = exp(code, code.select(x < 0.0, x, 0.0 - x))
    # ln(1 + u) = 2 artanh(u / (2 + u)), and the argument is at most 1/3
    s = u / (2.0 + u)
    square = s * s
    p = code.like(1 / 19, s)
    for n in (17, 15, 13, 11, 9, 7, 5, 3, 1):
        p = code.fma(p, square, code.like(1 / n, s))
    return positive + 2.0 * s * p


def log(code: Code, x: Value) -> Value:
    """Return ln x of a positive, finite float64."""
    bits = x.bits(I64)
    n = (bits >> 52) - 1023
    m = ((bits & ((1 << 52) - 1)) | (1023 << 52)).bits(F64)
    high = m > 1.4142135623730951
    m = code.select(high, m * 0.5, m)
    n = code.select(high, n + 1, n)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    p = code.like(1 / 23, s)
    for k in range(21, 0, -2):
        p = code.fma(p, square, code.like(1 / k, s))
    return code.fma(n.to(F64), code.like(0.6931471805599453, m), 2.0 * s * p)


def lanes_sum(x: Value) -> Value:
    """Return the sum over the lanes: halves are added until one is left."""
    while x.lanes > 1:
        half = x.lanes // 2
        x = (
            x.pick(range(half)) + x.pick(range(half, x.lanes))
            if half > 1
            else x.lane(0) + x.lane(1)
        )
    return x


def lanes_most(code: Code, x: Value) -> Value:
    while x.lanes > 1:
        half = x.lanes // 2
        a, b = (
            (x.pick(range(half)), x.pick(range(half, x.lanes)))
            if half > 1
            else (
                x.lane(0),
                x.lane(1),
            )
        )
        x = code.most(a, b)
    return x


def transposed(rows: list[Value]) -> list[Value]:
    """Return the columns of a square: quarters change places at every scale."""
    step = 1
    while step < len(rows):
        lanes = range(len(rows))
        low = [n if not n & step else len(rows) + n - step for n in lanes]
        high = [n + step if not n & step else len(rows) + n for n in lanes]
        out = list(rows)
        for i in lanes:
            if not i & step:
                a, b = rows[i], rows[i + step]
                out[i], out[i + step] = a.pick(low, b), a.pick(high, b)
        rows, step = out, 2 * step
    return rows
