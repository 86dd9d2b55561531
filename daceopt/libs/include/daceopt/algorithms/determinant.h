// Determinants by elimination.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

namespace daceopt {

// y[m] = det(x[m, :, :]) by Gaussian elimination with partial pivoting, in double. parameters: matrices; rows.
template <typename T>
void determinant(const T* x, T* y, const int64_t* parameters) {
    const int64_t count = parameters[0], n = parameters[1];
#pragma omp parallel for if (count > 1 && count * n * n * n > 32768)
    for (int64_t m = 0; m < count; ++m) {
        const std::unique_ptr<double[]> a(new double[n * n]);
        std::copy(x + m * n * n, x + (m + 1) * n * n, a.get());
        double product = 1;
        for (int64_t k = 0; k < n; ++k) {
            int64_t pivot = k;
            for (int64_t r = k + 1; r < n; ++r)
                if (std::fabs(a[r * n + k]) > std::fabs(a[pivot * n + k])) pivot = r;
            if (pivot != k) {
                std::swap_ranges(&a[k * n], &a[k * n] + n, &a[pivot * n]);
                product = -product;
            }
            product *= a[k * n + k];
            if (a[k * n + k] == 0) break;
            for (int64_t r = k + 1; r < n; ++r) {
                const double factor = a[r * n + k] / a[k * n + k];
                for (int64_t j = k + 1; j < n; ++j) a[r * n + j] -= factor * a[k * n + j];
            }
        }
        y[m] = T(product);
    }
}

}  // namespace daceopt
