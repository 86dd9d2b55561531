// The indices of the largest or smallest elements along an axis, in order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

// indices[o, n, i] is where the n-th largest (smallest) of x[o, :, i] stands; among equals the lower index comes first.
// parameters: elements before, at and after the axis; k; 1 for the largest. NaN counts as the largest, as in PyTorch.
// Selection, then a sort of what was selected.
template <typename T>
void top_indices(const T* x, int64_t* indices, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2], k = parameters[3];
    const bool largest = parameters[4];
    if (k < 0 || k > extent) return fail_index("TopK", "k is larger than the extent of the axis");
#pragma omp parallel if (outer * inner > 1 && outer * extent * inner > 8192)
    {
        const std::unique_ptr<T[]> lane(new T[extent]);
        const std::unique_ptr<int64_t[]> order(new int64_t[extent]);
        const auto earlier = [&](int64_t a, int64_t b) {
            const T left = lane[a], right = lane[b];
            if (largest ? before(right, left) : before(left, right)) return true;
            return !(largest ? before(left, right) : before(right, left)) && a < b;
        };
#pragma omp for collapse(2)
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < inner; ++i) {
                for (int64_t n = 0; n < extent; ++n) lane[n] = x[(o * extent + n) * inner + i];
                int64_t* const first = order.get();
                std::iota(first, first + extent, int64_t(0));
                if (k < extent) std::nth_element(first, first + k, first + extent, earlier);
                std::sort(first, first + k, earlier);
                for (int64_t n = 0; n < k; ++n) indices[(o * k + n) * inner + i] = order[n];
            }
    }
}

}  // namespace daceopt
