# ruff: noqa: F821, F841  (memlets define names in DaCe's language)
"""Programs as users of DaCe write them. DaCe reads their source, so they stand in a file."""

import dace
import numpy as np

M, N = dace.symbol("M"), dace.symbol("N")
T = dace.symbol("T")


@dace.program
def attention(q: dace.float64[N, 8], k: dace.float64[M, 8], v: dace.float64[M, 8]):
    scores = q @ np.transpose(k)
    shifted = scores - np.max(scores)
    weights = np.exp(shifted)
    return (weights @ v) / np.sum(weights)


@dace.program
def stencil(a: dace.float64[N], b: dace.float64[N]):
    for _ in range(T):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])


@dace.program
def histogram_rows(a: dace.float32[M, N], out: dace.float32[M]):
    for i, j in dace.map[0:M, 0:N]:
        with dace.tasklet:
            x << a[i, j]
            s >> out(1, lambda p, q: p + q)[i]
            s = x * x if x > 0 else math.exp(x)


@dace.program
def corner(a: dace.float32[6, 7], out: dace.float32[6, 7]):
    out[1:4, 2:5] = a[0:3, 4:7] * 2
    out[5, 0] = a[0, 0]


@dace.program
def gathered(a: dace.float32[N], k: dace.int64[5]):
    out = np.empty((5,), dace.float32)
    for i in dace.map[0:5]:
        with dace.tasklet:
            table << a[:]
            at << k[i]
            o >> out[i]
            o = table[at]
    return out


@dace.program
def several(a: dace.float32[4, 5], scale: dace.float32):
    product = a * scale
    rows = np.sum(product, axis=1)
    largest = np.max(product, axis=0)
    return rows, largest


@dace.program
def branching(a: dace.float32[4]):
    if a[0] > 0:
        a[:] = 1
    else:
        a[:] = 2


@dace.program
def looping(a: dace.float32[N]):
    for i in range(1, N):
        a[i] = a[i] + a[i - 1]


@dace.program
def triangular(a: dace.float32[6, 6]):
    out = np.zeros((6, 6), dace.float32)
    for i in dace.map[0:6]:
        for j in dace.map[0 : i + 1]:
            out[i, j] = a[i, j]
    return out


@dace.program
def strided(a: dace.float32[8]):
    return a[::2] + 1


@dace.program
def whole_quotient(a: dace.int32[4]):
    return a // 2 + a % 3


@dace.program
def inverse(a: dace.float64[4, 4]):
    return np.linalg.inv(a)


@dace.program
def nothing(x: dace.float64[5], zero: dace.float64[5], negative: dace.float64[5], whole: dace.float64[5]):
    zero[:] = x * 0.0
    negative[:] = x * -0.0
    whole[:] = x * 0
