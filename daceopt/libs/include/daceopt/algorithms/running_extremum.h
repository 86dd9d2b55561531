// Running maxima and minima along one axis, and where they stand.
#pragma once
#include <cstdint>

namespace daceopt {

// Among equals the last index, and once there is a NaN, the last NaN, as in PyTorch.
// parameters: elements before, at and after the axis; 1 for the largest.
template <typename T>
void running_extremum(const T* x, T* y, int64_t* indices, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2];
    const bool largest = parameters[3];
#pragma omp parallel for collapse(2) if (outer * inner > 1 && outer * extent * inner > 32768)
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            T best = T();
            int64_t place = 0;
            for (int64_t k = 0; k < extent; ++k) {
                const int64_t at = (o * extent + k) * inner + i;
                const T value = x[at];
                if (k == 0 || value != value || (best == best && (largest ? value >= best : value <= best))) {
                    best = value;
                    place = k;
                }
                if (y) y[at] = best;
                if (indices) indices[at] = place;
            }
        }
}

}  // namespace daceopt
