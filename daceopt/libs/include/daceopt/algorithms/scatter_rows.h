// Rows replaced by, or combined with, rows of updates at run-time positions.
#pragma once
#include <algorithm>
#include <cstdint>

#include <omp.h>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

// out[rows, width] = data; out[positions[i]] = combine(out[positions[i]], updates[i]) for i = 0, 1, ... < count.
// parameters: rows; width; count; reduction: 0 replaces, 1 adds, 2 multiplies, 3 is max, 4 is min.
// A position outside of [0, rows) is reported, and nothing is combined then.
template <typename T>
void scatter_rows(const T* data, const int64_t* positions, const T* updates, T* out, const int64_t* parameters) {
    const int64_t rows = parameters[0], width = parameters[1], count = parameters[2], reduction = parameters[3];
    std::copy(data, data + rows * width, out);
    if (std::any_of(positions, positions + count, [&](int64_t p) { return p < 0 || p >= rows; }))
        return fail_index("scatter", "an index is out of range");
    const auto every = [&](auto combine) {
        // A thread owns columns where there are many, else rows: duplicates stay in order.
        constexpr int64_t columns = 64;
#pragma omp parallel if (count * width > 32768)
        {
            const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
            const bool by_columns = width >= columns * threads;
            const int64_t first = by_columns ? width * me / threads : 0, last = by_columns ? width * (me + 1) / threads : width;
            const int64_t low = by_columns ? 0 : rows * me / threads, high = by_columns ? rows : rows * (me + 1) / threads;
            for (int64_t i = 0; i < count; ++i) {
                if (positions[i] < low || positions[i] >= high) continue;
                T* to = out + positions[i] * width;
                const T* from = updates + i * width;
#pragma omp simd
                for (int64_t j = first; j < last; ++j) to[j] = combine(to[j], from[j]);
            }
        }
    };
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
