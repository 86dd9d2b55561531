// Products of tiles in C++ alone.
#include "daceopt/product_impl.h"

#define DACEOPT_JOINED(a, b) a##b
#define DACEOPT_NAME(type) DACEOPT_JOINED(daceopt_product_, type)

extern "C" void DACEOPT_NAME(DACEOPT_T)(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                                        const DACEOPT_T* a, const DACEOPT_T* b, DACEOPT_T* c) {
    daceopt::product(m, n, k, lda, ldb, ldc, add, a, b, c);
}
