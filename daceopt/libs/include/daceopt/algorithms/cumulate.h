// Running sums and products along one axis.
#pragma once
#include <algorithm>
#include <cstdint>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

namespace detail {

constexpr int64_t kLanes = 64;  // running values side by side, for vectors

template <typename T, typename Wide, typename Combine>
void cumulate_lanes(const T* x, T* y, int64_t extent, int64_t inner, int64_t lanes, bool exclusive, bool reverse, Wide start,
                    Combine combine) {
    Wide total[kLanes];
    std::fill_n(total, lanes, start);
    for (int64_t k = 0; k < extent; ++k) {
        const int64_t at = (reverse ? extent - 1 - k : k) * inner;
        const T* from = x + at;
        T* to = y + at;
#pragma omp simd
        for (int64_t j = 0; j < lanes; ++j) {
            const Wide next = combine(total[j], Wide(from[j]));
            to[j] = T(exclusive ? total[j] : next);
            total[j] = next;
        }
    }
}

constexpr int64_t kRows = 8;  // running values that wait for nothing but themselves

// The same for whole rows, whose elements are neighbours.
template <int64_t ROWS, typename T, typename Wide, typename Combine>
void cumulate_rows(const T* x, T* y, int64_t extent, bool exclusive, bool reverse, Wide start, Combine combine) {
    Wide total[ROWS];
    std::fill_n(total, ROWS, start);
    for (int64_t k = 0; k < extent; ++k) {
        const int64_t at = reverse ? extent - 1 - k : k;
#pragma GCC unroll 8
        for (int64_t row = 0; row < ROWS; ++row) {
            const Wide next = combine(total[row], Wide(x[row * extent + at]));
            y[row * extent + at] = T(exclusive ? total[row] : next);
            total[row] = next;
        }
    }
}

}  // namespace detail

// parameters: elements before, at and after the axis; exclusive; reverse; 1 for products.
template <typename T>
void cumulate(const T* x, T* y, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2];
    const bool exclusive = parameters[3], reverse = parameters[4], product = parameters[5];
    using Wide = Accumulator<T>;
    const auto every = [&](Wide start, auto combine) {
        if (inner == 1) {
#pragma omp parallel for if (outer > detail::kRows && outer * extent > 32768)
            for (int64_t first = 0; first < outer; first += detail::kRows) {
                const int64_t begin = first * extent, end = std::min(outer, first + detail::kRows) * extent;
                if (end - begin == detail::kRows * extent)
                    detail::cumulate_rows<detail::kRows>(x + begin, y + begin, extent, exclusive, reverse, start, combine);
                else
                    for (int64_t at = begin; at < end; at += extent)
                        detail::cumulate_rows<1>(x + at, y + at, extent, exclusive, reverse, start, combine);
            }
            return;
        }
#pragma omp parallel for collapse(2) if (outer * inner > 1 && outer * extent * inner > 32768)
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t first = 0; first < inner; first += detail::kLanes) {
                const int64_t begin = o * extent * inner + first, lanes = std::min(detail::kLanes, inner - first);
                detail::cumulate_lanes(x + begin, y + begin, extent, inner, lanes, exclusive, reverse, start, combine);
            }
    };
    if (product) return every(Wide(1), [](Wide a, Wide b) { return multiply(a, b); });
    every(Wide(0), [](Wide a, Wide b) { return add(a, b); });
}

}  // namespace daceopt
