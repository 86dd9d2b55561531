// Products of tiles by the micro-kernels that oneDNN compiles for this CPU, which torch exports; found in the process.
#include "daceopt/product_impl.h"
#include "daceopt/torch_symbol.h"

namespace {

using Brgemm = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const float*, const float*, float*, bool);

Brgemm brgemm() {
    // at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, A, B, C, is_vnni)
    static const auto function = daceopt::torch_symbol<Brgemm>("_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb");
    return function;
}

}  // namespace

extern "C" void daceopt_product_float(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                                      const float* a, const float* b, float* c) {
    const auto call = brgemm();
    if (!call || m <= 0 || n <= 0 || k <= 0 || lda < k || ldb < n || ldc < n) {
        daceopt::product(m, n, k, lda, ldb, ldc, add, a, b, c);
        return;
    }
    call(m, n, k, lda, ldb, ldc, add, a, b, c, false);
}
