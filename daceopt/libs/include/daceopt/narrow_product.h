// C (+)= A @ B on tiles of bfloat16, with sums in float. Rows of A and C are contiguous, and those of B, or its columns.
#pragma once
#include <cstdint>
#include <vector>

#include "daceopt/element.h"
#include "daceopt/product_impl.h"

namespace daceopt {

struct NarrowTile {
    int64_t m, n, k, lda, ldb, ldc;
    bool add, turned;  // turned: columns of B are contiguous, and ldb leads from one to the next
    const uint16_t *a, *b;
    float* c;
};

// At least `count` elements of a thread's memory for one purpose. They begin a line of the cache: AMX takes twice as long
// for rows that lie across two.
template <typename T>
T* at_least(std::vector<T>& memory, int64_t count) {
    constexpr size_t kLine = 64;
    const size_t wanted = static_cast<size_t>(count) + kLine / sizeof(T);
    if (memory.size() < wanted) memory.resize(wanted);
    const auto first = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + ((first + kLine - 1) / kLine * kLine - first) / sizeof(T);
}

// Of CPUs without units for bfloat16: the factors in float first.
inline void product_widened(const NarrowTile& t) {
    thread_local std::vector<float> left, right;
    float *a = at_least(left, t.m * t.k), *b = at_least(right, t.k * t.n);
    for (int64_t i = 0; i < t.m; ++i)
        for (int64_t p = 0; p < t.k; ++p) a[i * t.k + p] = from_bfloat16(t.a[i * t.lda + p]);
    for (int64_t p = 0; p < t.k; ++p)
        for (int64_t j = 0; j < t.n; ++j) b[p * t.n + j] = from_bfloat16(t.turned ? t.b[j * t.ldb + p] : t.b[p * t.ldb + j]);
    product<float>(t.m, t.n, t.k, t.k, t.n, t.ldc, t.add, a, b, t.c);
}

}  // namespace daceopt

// What generated code calls; the source that includes this says how with `multiply`.
#define DACEOPT_NARROW_PRODUCTS(multiply)                                                                            \
    extern "C" void daceopt_product_bfloat16(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, \
                                             bool add, const uint16_t* a, const uint16_t* b, float* c) {             \
        multiply({m, n, k, lda, ldb, ldc, add, false, a, b, c});                                                     \
    }                                                                                                                \
    extern "C" void daceopt_product_bfloat16_turned(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,       \
                                                    int64_t ldc, bool add, const uint16_t* a, const uint16_t* b,     \
                                                    float* c) {                                                      \
        multiply({m, n, k, lda, ldb, ldc, add, true, a, b, c});                                                      \
    }
