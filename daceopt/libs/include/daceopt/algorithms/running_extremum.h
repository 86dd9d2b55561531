// Running maxima and minima along one axis, and where they stand.
#pragma once
#include <algorithm>
#include <cstdint>

namespace daceopt {

// Among equals the last index, and once there is a NaN, the last NaN, as in PyTorch.
// parameters: elements before, at and after the axis; 1 for the largest.
template <typename T>
void running_extremum(const T* x, T* y, int64_t* indices, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2];
    constexpr int64_t kColumns = 64;  // side by side, for vectors
    const auto every = [&](auto follows) {
#pragma omp parallel for collapse(2) if (outer * inner > 1 && outer * extent * inner > 32768)
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t first = 0; first < inner; first += kColumns) {
                const int64_t columns = std::min(kColumns, inner - first);
                T best[kColumns] = {};
                int64_t place[kColumns] = {};
                for (int64_t k = 0; k < extent; ++k) {
                    const int64_t at = (o * extent + k) * inner + first;
#pragma omp simd
                    for (int64_t j = 0; j < columns; ++j) {
                        const T value = x[at + j];
                        const bool takes = k == 0 || value != value || (best[j] == best[j] && follows(value, best[j]));
                        best[j] = takes ? value : best[j];
                        place[j] = takes ? k : place[j];
                    }
                    if (y) std::copy_n(best, columns, y + at);
                    if (indices) std::copy_n(place, columns, indices + at);
                }
            }
    };
    if (parameters[3]) return every([](T value, T best) { return value >= best; });
    every([](T value, T best) { return value <= best; });
}

}  // namespace daceopt
