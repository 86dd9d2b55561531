// Rows replaced by, or combined with, rows of updates at run-time positions.
#pragma once
#include <algorithm>
#include <cstdint>

#include "daceopt/algorithms/arithmetic.h"
#include "daceopt/scattering.h"

namespace daceopt {

// out[rows, width] = data; out[positions[i]] = combine(out[positions[i]], updates[i]) for i = 0, 1, ... < count.
// parameters: rows; width; count; reduction: 0 replaces, 1 adds, 2 multiplies, 3 is max, 4 is min.
// A position outside of [0, rows) is reported, and nothing is combined then. `out` may be `data`.
template <typename T>
void scatter_rows(const T* data, const int64_t* positions, const T* updates, T* out, const int64_t* parameters) {
    const int64_t rows = parameters[0], width = parameters[1], count = parameters[2], reduction = parameters[3];
    if (std::any_of(positions, positions + count, [&](int64_t p) { return p < 0 || p >= rows; }))
        return fail_index("scatter", "an index is out of range");
    const auto row_of = [=](int64_t i) { return positions[i]; };
    const auto begin = [=](int64_t first, int64_t last) { std::copy(data + first * width, data + last * width, out + first * width); };
    const auto every = [&](auto combine) { scatter({rows, width, count, data == out}, updates, out, row_of, begin, combine); };
    if (reduction == 0) return every([](T, T update) { return update; });
    if constexpr (std::is_arithmetic_v<T>) {  // not as pointers to functions, which loops would call
        if (reduction == 1) return every([](T a, T b) { return add(a, b); });
        if (reduction == 2) return every([](T a, T b) { return multiply(a, b); });
        if (reduction == 3) return every([](T a, T b) { return larger(a, b); });
        return every([](T a, T b) { return smaller(a, b); });
    }
    fail("scatter", "elements of this type can be replaced only");
}

}  // namespace daceopt
