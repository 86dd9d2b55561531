// Products of tiles in C++ alone.
#include "daceopt/product_impl.h"

extern "C" void daceopt_product_float(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                                      const float* a, const float* b, float* c) {
    daceopt::product(m, n, k, lda, ldb, ldc, add, a, b, c);
}

extern "C" void daceopt_product_double(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                                       const double* a, const double* b, double* c) {
    daceopt::product(m, n, k, lda, ldb, ldc, add, a, b, c);
}
