// Matrix products by plain loops for one element type, DACEOPT_T, that no library serves; DACEOPT_NARROW: of bfloat16.
#include "daceopt/contraction_widened.h"

namespace daceopt {
namespace {

struct Native {
    // Column-major; integers wrap. One column of c at a time, so that the inner loop has unit stride where a has.
    template <typename T>
    static void gemm(char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                     int64_t ldb, T* c, int64_t ldc) {
        const int64_t row = ta == 'N' ? 1 : lda, inner_a = ta == 'N' ? lda : 1;
        const int64_t inner_b = tb == 'N' ? 1 : ldb, col = tb == 'N' ? ldb : 1;
#pragma omp parallel for if (m * n * k > kParallelElements)
        for (int64_t j = 0; j < n; ++j) {
            T* out = c + j * ldc;
            std::fill_n(out, m, T(0));
            for (int64_t l = 0; l < k; ++l) {
                const T factor = b[l * inner_b + j * col];
                for (int64_t i = 0; i < m; ++i) out[i] += a[i * row + l * inner_a] * factor;
            }
            for (int64_t i = 0; i < m && alpha != T(1); ++i) out[i] *= alpha;
        }
    }

    template <typename T>
    static void gemm_batch(char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T** a, int64_t lda,
                           const T** b, int64_t ldb, T** c, int64_t ldc, int64_t count) {
        for (int64_t i = 0; i < count; ++i) gemm(ta, tb, m, n, k, alpha, a[i], lda, b[i], ldb, c[i], ldc);
    }
};

}  // namespace

#ifdef DACEOPT_NARROW
void contraction_native(const NarrowProduct& product) { widened<Native>(product); }
#endif

#ifdef DACEOPT_T
template <typename T>
void contraction_native(const Product<T>& product) {
    contract<Native, T>(product);
}

template void contraction_native(const Product<DACEOPT_T>&);
#endif

}  // namespace daceopt
