// Gradients of determinants.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

namespace daceopt {

// dx[m, :, :] = dy[m] * det(x) * transpose(inverse(x)), by Gauss-Jordan elimination with partial pivoting, in double; as
// in PyTorch 0 where the determinant is. parameters: matrices; rows.
template <typename T>
void determinant_gradient(const T* x, const T* dy, T* dx, const int64_t* parameters) {
    const int64_t count = parameters[0], n = parameters[1];
#pragma omp parallel for if (count > 1 && count * n * n * n > 32768)
    for (int64_t m = 0; m < count; ++m) {
        const std::unique_ptr<double[]> a(new double[n * n]), inverse(new double[n * n]());
        std::copy(x + m * n * n, x + (m + 1) * n * n, a.get());
        for (int64_t k = 0; k < n; ++k) inverse[k * n + k] = 1;
        double product = 1;
        for (int64_t k = 0; k < n && product != 0; ++k) {
            int64_t pivot = k;
            for (int64_t r = k + 1; r < n; ++r)
                if (std::fabs(a[r * n + k]) > std::fabs(a[pivot * n + k])) pivot = r;
            if (pivot != k) {
                std::swap_ranges(&a[k * n], &a[k * n] + n, &a[pivot * n]);
                std::swap_ranges(&inverse[k * n], &inverse[k * n] + n, &inverse[pivot * n]);
                product = -product;
            }
            const double own = a[k * n + k];
            product *= own;
            if (own == 0) break;
            for (int64_t j = 0; j < n; ++j) {
                a[k * n + j] /= own;
                inverse[k * n + j] /= own;
            }
            for (int64_t r = 0; r < n; ++r) {
                const double factor = a[r * n + k];
                if (r == k || factor == 0) continue;
                for (int64_t j = 0; j < n; ++j) {
                    a[r * n + j] -= factor * a[k * n + j];
                    inverse[r * n + j] -= factor * inverse[k * n + j];
                }
            }
        }
        const double scale = double(dy[m]) * product;
        for (int64_t r = 0; r < n; ++r)
            for (int64_t j = 0; j < n; ++j)
                dx[(m * n + r) * n + j] = product == 0 ? T(0) : T(scale * inverse[j * n + r]);
    }
}

}  // namespace daceopt
