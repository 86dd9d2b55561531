// The gradient of running products along one axis.
#pragma once
#include <cstdint>
#include <memory>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

// dx[j] is the sum of dy[k] times the product of all factors of y[k] but x[j]: without a division, so zeros are as good
// as any other factor. The sums run from the last element to the first; the products of what comes before x[j] back.
// As in PyTorch, a factor of 0 makes a product 0, whatever its other factors are, and the slope by a factor that is
// infinite or NaN is NaN.
// parameters: elements before, at and after the axis; exclusive; reverse.
template <typename T>
void product_gradient(const T* x, const T* dy, T* dx, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2];
    const bool exclusive = parameters[3], reverse = parameters[4];
    using Wide = Accumulator<T>;
#pragma omp parallel if (outer * inner > 1 && outer * extent * inner > 32768)
    {
        const std::unique_ptr<Wide[]> sums(new Wide[extent]);
#pragma omp for collapse(2)
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < inner; ++i) {
                const auto times = [](Wide a, Wide b) { return a == Wide(0) || b == Wide(0) ? Wide(0) : multiply(a, b); };
                const auto at = [&](int64_t k) {
                    return (o * extent + (reverse ? extent - 1 - k : k)) * inner + i;
                };
                Wide later = Wide(0);
                for (int64_t k = extent - 1; k >= 0; --k) {
                    const Wide with_own = add(Wide(dy[at(k)]), later);
                    const Wide own = Wide(x[at(k)]), none = Wide(own - own);
                    sums[k] = exclusive ? later : none == none ? with_own : none;
                    later = exclusive ? add(Wide(dy[at(k)]), (own == Wide(0) ? own : multiply(own, later)))
                                      : own == Wide(0) ? own : multiply(own, with_own);
                }
                Wide earlier = Wide(1);
                for (int64_t k = 0; k < extent; ++k) {
                    dx[at(k)] = T(times(earlier, sums[k]));
                    earlier = times(Wide(x[at(k)]), earlier);
                }
            }
    }
}

}  // namespace daceopt
