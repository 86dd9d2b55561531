// C (+)= A @ B on tiles of bfloat16, with sums in float. Rows of A and C are contiguous, and those of B, or its columns.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "daceopt/cpu.h"
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

inline float widened(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

// Of CPUs without units for bfloat16: the factors in float first.
inline void product_widened(const NarrowTile& t) {
    thread_local std::vector<float> left, right;
    float *a = at_least(left, t.m * t.k), *b = at_least(right, t.k * t.n);
    for (int64_t i = 0; i < t.m; ++i)
        for (int64_t p = 0; p < t.k; ++p) a[i * t.k + p] = widened(t.a[i * t.lda + p]);
    for (int64_t p = 0; p < t.k; ++p)
        for (int64_t j = 0; j < t.n; ++j) b[p * t.n + j] = widened(t.turned ? t.b[j * t.ldb + p] : t.b[p * t.ldb + j]);
    product<float>(t.m, t.n, t.k, t.k, t.n, t.ldc, t.add, a, b, t.c);
}

constexpr int64_t kPanel = 64;  // columns of a panel, as oneDNN's micro-kernels take them

// `columns` columns of B from `first` on, pairs of their rows side by side as the units take them; a last single row has
// zeros beside it. `panel` has kPanel pairs in a row.
inline void pack_panel(const NarrowTile& t, int64_t first, int64_t columns, uint32_t* panel) {
    const int64_t pairs = t.k / 2;
    if (!t.turned) {
        for (int64_t p = 0; p < pairs; ++p) {
            const uint16_t *even = t.b + 2 * p * t.ldb + first, *odd = even + t.ldb;
            uint32_t* row = panel + p * kPanel;
#pragma omp simd
            for (int64_t j = 0; j < columns; ++j) row[j] = even[j] | static_cast<uint32_t>(odd[j]) << 16;
        }
    } else {
        constexpr int64_t kBlock = 16;
        const int64_t whole = t.ldb % 2 ? 0 : pairs / kBlock * kBlock, wide = t.ldb % 2 ? 0 : columns / kBlock * kBlock;
        const uint16_t* begin = t.b + first * t.ldb;
        for (int64_t p = 0; p < whole; p += kBlock)
            for (int64_t j = 0; j < wide; j += kBlock)
                dop::transposed_block<kBlock>(reinterpret_cast<const uint32_t*>(begin + j * t.ldb) + p, t.ldb / 2,
                                              panel + p * kPanel + j, kPanel);
        for (int64_t p = 0; p < pairs; ++p)
            for (int64_t j = p < whole ? wide : 0; j < columns; ++j)
                std::memcpy(panel + p * kPanel + j, begin + j * t.ldb + 2 * p, sizeof(uint32_t));
    }
    if (t.k % 2)
        for (int64_t j = 0; j < columns; ++j)
            panel[pairs * kPanel + j] = t.turned ? t.b[(first + j) * t.ldb + t.k - 1] : t.b[(t.k - 1) * t.ldb + first + j];
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
