// Running sums and products along one axis.
#pragma once
#include <cstdint>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

// parameters: elements before, at and after the axis; exclusive; reverse; 1 for products.
template <typename T>
void cumulate(const T* x, T* y, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2];
    const bool exclusive = parameters[3], reverse = parameters[4], product = parameters[5];
    using Wide = Accumulator<T>;
#pragma omp parallel for collapse(2) if (outer * inner > 1 && outer * extent * inner > 32768)
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            Wide total = product ? Wide(1) : Wide(0);
            for (int64_t k = 0; k < extent; ++k) {
                const int64_t at = (o * extent + (reverse ? extent - 1 - k : k)) * inner + i;
                const Wide next = product ? multiply(total, Wide(x[at])) : add(total, Wide(x[at]));
                y[at] = T(exclusive ? total : next);
                total = next;
            }
        }
}

}  // namespace daceopt
