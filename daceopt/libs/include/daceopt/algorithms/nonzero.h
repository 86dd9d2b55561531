// Where an array is not zero.
#pragma once
#include <cstdint>
#include <vector>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

// places[d, n] is coordinate d of the n-th element of x, in row-major order, that is not zero.
// parameters: number of elements that are not zero; rank; extents.
template <typename T>
void nonzero(const T* x, int64_t* places, const int64_t* parameters) {
    const int64_t count = parameters[0], rank = parameters[1];
    const int64_t* const shape = parameters + 2;
    int64_t size = 1, found = 0;
    for (int64_t d = 0; d < rank; ++d) size *= shape[d];
    for (int64_t e = 0; e < size; ++e) found += x[e] != T(0);
    if (!expect_count("NonZero", found, count)) return;
    std::vector<int64_t> at(rank, 0);
    for (int64_t e = 0, n = 0; e < size; ++e) {
        if (x[e] != T(0)) {
            for (int64_t d = 0; d < rank; ++d) places[d * count + n] = at[d];
            ++n;
        }
        for (int64_t d = rank; d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
    }
}

}  // namespace daceopt
