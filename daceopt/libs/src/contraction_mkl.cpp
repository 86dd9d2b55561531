// Matrix products by the MKL inside torch, found in the process rather than linked: torch is loaded before any program.
// Of one type: DACEOPT_T, or bfloat16 (DACEOPT_NARROW), for each takes a second to compile.
#include "daceopt/contraction_widened.h"
#include "daceopt/subnormal_factors.h"
#include "daceopt/torch_symbol.h"

namespace daceopt {
namespace {

using Int = const int64_t*;
template <typename T>
using Gemm = void (*)(const char*, const char*, Int, Int, Int, const T*, const T*, Int, const T*, Int, const T*, T*, Int);
template <typename T>
using GemmBatch = void (*)(const char*, const char*, Int, Int, Int, const T*, const T**, Int, const T**, Int, const T*, T**, Int, Int, Int);

template <typename T>
struct Names;
template <>
struct Names<float> { static constexpr const char *gemm = "sgemm_64_", *batch = "sgemm_batch_64_"; };
template <>
struct Names<double> { static constexpr const char *gemm = "dgemm_64_", *batch = "dgemm_batch_64_"; };

template <typename T>
Gemm<T> gemm_function() {
    static const auto function = torch_symbol<Gemm<T>>(Names<T>::gemm);
    return function;
}

template <typename T>
GemmBatch<T> batch_function() {
    static const auto function = torch_symbol<GemmBatch<T>>(Names<T>::batch);
    return function;
}

struct Mkl {
    template <typename T>
    static void product(char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                        int64_t ldb, T* c, int64_t ldc) {
        const T beta = 0;
        gemm_function<T>()(&ta, &tb, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
    }
    template <typename T>
    static void gemm(char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                     int64_t ldb, T* c, int64_t ldc) {
        detail::multiply_watching<T>(product<T>, ta, tb, m, n, k, alpha, a, lda, b, ldb, c, ldc);
    }
    // As fast as a parallel loop of sequential products, and splits few large ones too.
    template <typename T>
    static void gemm_batch(char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T** a, int64_t lda,
                           const T** b, int64_t ldb, T** c, int64_t ldc, int64_t count) {
        const T beta = 0;
        const int64_t groups = 1;
        batch_function<T>()(&ta, &tb, &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc, &groups, &count);
    }
};

}  // namespace

#ifdef DACEOPT_NARROW
void contraction_mkl(const NarrowProduct& product) {
    if (!gemm_function<float>() || !batch_function<float>()) return fail("Contraction", "no MKL in libtorch_cpu.so; import torch first");
    widened<Mkl>(product);
}
#endif

#ifdef DACEOPT_T
template <typename T>
void contraction_mkl(const Product<T>& product) {
    if (!gemm_function<T>() || !batch_function<T>()) return fail("Contraction", "no MKL in libtorch_cpu.so; import torch first");
    contract<Mkl, T>(product);
}

template void contraction_mkl(const Product<DACEOPT_T>&);
#endif

}  // namespace daceopt
