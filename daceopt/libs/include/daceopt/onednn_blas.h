// Products of float32 by oneDNN, for contraction_impl.h.
#pragma once
#include "daceopt/threads.h"

#include <oneapi/dnnl/dnnl.h>

#include "daceopt/contraction_impl.h"
#include "daceopt/subnormal_factors.h"

namespace daceopt {
namespace detail {

// For as long as it lives, this thread starts no others if `alone`: oneDNN starts them even for 64x8x8, which takes 3 us in
// place of 0.5, and milliseconds where two of them share a core.
class Alone {
  public:
    explicit Alone(bool alone) : before_(alone ? omp_get_max_threads() : 1) {
        if (before_ > 1) omp_set_num_threads(1);
    }
    ~Alone() {
        if (before_ > 1) omp_set_num_threads(before_);
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

  private:
    const int before_;
};

// From twice as many on, two threads are faster (an EPYC: 64x64x64 6 us by one thread, 9 by two; 64x64x128 11 and 8).
constexpr int64_t kAloneOperations = int64_t(1) << 18;

}  // namespace detail

struct OneDnn {
    // Column-major c = a b is row-major c^T = b^T a^T, which is what oneDNN computes.
    static bool product(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
                        const float* b, int64_t ldb, float* c, int64_t ldc) {
        const detail::Alone alone(m * n * k <= detail::kAloneOperations);
        return dnnl_sgemm(tb, ta, n, m, k, alpha, b, ldb, a, lda, 0.0f, c, ldc) == dnnl_success;
    }

    static void gemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
                     int64_t ldb, float* c, int64_t ldc) {
        const auto call = [](auto... operands) {
            if (!product(operands...)) fail("Contraction", "oneDNN refused a product");
        };
        detail::multiply_watching<float>(call, ta, tb, m, n, k, alpha, a, lda, b, ldb, c, ldc);
    }

    // Many products: one thread each, since oneDNN starts no threads inside of a parallel region. Few: all threads for each.
    static void gemm_batch(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float** a, int64_t lda,
                           const float** b, int64_t ldb, float** c, int64_t ldc, int64_t count) {
        int refused = 0;
#pragma omp parallel for reduction(+ : refused) if (count >= omp_get_max_threads() && count * m * n * k > kParallelElements)
        for (int64_t i = 0; i < count; ++i) refused += !product(ta, tb, m, n, k, alpha, a[i], lda, b[i], ldb, c[i], ldc);
        if (refused) fail("Contraction", "oneDNN refused a product");
    }
};

}  // namespace daceopt
