// C (+)= A @ B on tiles whose rows are contiguous: blocks of C stay in registers while A and B are walked once.
#pragma once
#include <cstdint>

namespace daceopt {

template <typename T, int ROWS, int COLUMNS>
void product_block(int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const T* a, const T* b, T* c) {
    T sum[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; ++i)
        for (int j = 0; j < COLUMNS; ++j) sum[i][j] = add ? c[i * ldc + j] : T(0);
    for (int64_t p = 0; p < k; ++p)
        for (int i = 0; i < ROWS; ++i) {
            const T x = a[i * lda + p];
#pragma omp simd
            for (int j = 0; j < COLUMNS; ++j) sum[i][j] += x * b[p * ldb + j];
        }
    for (int i = 0; i < ROWS; ++i)
        for (int j = 0; j < COLUMNS; ++j) c[i * ldc + j] = sum[i][j];
}

// What is left beside whole blocks.
template <typename T>
void product_edge(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const T* a,
                  const T* b, T* c) {
    for (int64_t i = 0; i < m; ++i) {
        if (!add)
            for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = T(0);
        for (int64_t p = 0; p < k; ++p) {
            const T x = a[i * lda + p];
#pragma omp simd
            for (int64_t j = 0; j < n; ++j) c[i * ldc + j] += x * b[p * ldb + j];
        }
    }
}

template <typename T>
void product(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const T* a, const T* b,
             T* c) {
    constexpr int ROWS = 4, COLUMNS = 128 / sizeof(T);
    const int64_t rows = m / ROWS * ROWS, columns = n / COLUMNS * COLUMNS;
    for (int64_t i = 0; i < rows; i += ROWS)
        for (int64_t j = 0; j < columns; j += COLUMNS)
            product_block<T, ROWS, COLUMNS>(k, lda, ldb, ldc, add, a + i * lda, b + j, c + i * ldc + j);
    if (columns < n) product_edge(rows, n - columns, k, lda, ldb, ldc, add, a, b + columns, c + columns);
    if (rows < m) product_edge(m - rows, n, k, lda, ldb, ldc, add, a + rows * lda, b, c + rows * ldc);
}

}  // namespace daceopt
