// Rows replaced by, or combined with, rows of updates at run-time positions.
#pragma once
#include <algorithm>
#include <cstdint>

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
        // threads take columns: duplicates stay in order
        constexpr int64_t columns = 1024;
#pragma omp parallel for if (width > columns && count * width > 32768)
        for (int64_t first = 0; first < width; first += columns)
            for (int64_t i = 0; i < count; ++i) {
                T* to = out + positions[i] * width;
                const T* from = updates + i * width;
                for (int64_t j = first; j < std::min(first + columns, width); ++j) to[j] = combine(to[j], from[j]);
            }
    };
    if (reduction == 0) return every([](T, T update) { return update; });
    if constexpr (std::is_arithmetic_v<T>) {
        if (reduction == 1) return every(add<T>);
        if (reduction == 2) return every(multiply<T>);
        if (reduction == 3) return every(larger<T>);
        return every(smaller<T>);
    }
    fail("scatter", "elements of this type can be replaced only");
}

}  // namespace daceopt
