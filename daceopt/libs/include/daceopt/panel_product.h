// Products by a right factor that many of them share: it is copied once into panels of a few vectors' width, which a
// micro-kernel walks from their first to their last row with a block of the result in registers.
//
// A library's product packs such panels in every call, or gathers from rows; for few rows that takes as long as the
// product itself.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "daceopt/threads.h"

#include "daceopt/contraction_impl.h"
#include "daceopt/cpu.h"
#include "daceopt/weights.h"

namespace daceopt::panels {

#if defined(__AVX512F__)
constexpr int64_t kBytes = 64;
#elif defined(__AVX__)
constexpr int64_t kBytes = 32;
#else
constexpr int64_t kBytes = 16;
#endif
constexpr int kRegisters = kBytes == 64 ? 32 : 16;
constexpr int kVectors = kBytes == 64 ? 4 : 2;                       // of a panel
constexpr int kRows = (kRegisters - kVectors - 2) / kVectors;        // 6: sums, a row of the panel, and a factor
constexpr int64_t kDepth = 256;                                      // rows of a panel that are summed in registers
constexpr int64_t kParallelWork = 1 << 18;                           // multiplications; below, threads cost more than they save
constexpr int64_t kLoadedRows = 4;                                   // rows whose product takes as long as reading the panels

template <typename T>
constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(T));
template <typename T>
constexpr int64_t kWidth = kVectors * kLanes<T>;

template <typename T>
int64_t rounded(int64_t columns) { return (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>; }

// Rows of c: start + a b, for k rows of a panel b of N vectors; `start` may be null (zero) or c itself.
template <typename T, int R, int N>
void block(int64_t k, const T* a, int64_t lda, const T* b, const T* start, int64_t ldstart, T* c, int64_t ldc) {
    typedef T Vector __attribute__((vector_size(kBytes)));
    constexpr int64_t lanes = kLanes<T>;
    Vector sum[R][N] = {};
    for (int64_t p = 0; p < k; ++p, b += N * lanes) {
        Vector row[N];
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) std::memcpy(&row[v], b + v * lanes, kBytes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vector factor = Vector{} + a[r * lda + p];
#pragma GCC unroll 8
            for (int v = 0; v < N; ++v) sum[r][v] += factor * row[v];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < N; ++v) {
            if (start) {  // added last, so that rounding grows with the rows of one call only
                Vector before;
                std::memcpy(&before, start + r * ldstart + v * lanes, kBytes);
                sum[r][v] += before;
            }
            std::memcpy(c + r * ldc + v * lanes, &sum[r][v], kBytes);
        }
}

template <typename T>
using Block = void (*)(int64_t, const T*, int64_t, const T*, const T*, int64_t, T*, int64_t);

template <typename T, int... I>
constexpr std::array<Block<T>, sizeof...(I)> blocks(std::integer_sequence<int, I...>) {
    return {block<T, I / kVectors + 1, I % kVectors + 1>...};
}

template <typename T>
Block<T> block_of(int64_t rows, int64_t vectors) {
    static constexpr auto all = blocks<T>(std::make_integer_sequence<int, kRows * kVectors>());
    return all[(rows - 1) * kVectors + vectors - 1];
}

// The panels of b (k x n), side by side; what the last one lacks to whole vectors is zero.
template <typename T>
void pack(const Matrix<const T>& b, int64_t k, int64_t n, T* out) {
    const int64_t count = (n + kWidth<T> - 1) / kWidth<T>;
#pragma omp parallel for schedule(static) if (k * n > kParallelElements)
    for (int64_t j = 0; j < count; ++j) {
        const int64_t first = j * kWidth<T>, columns = std::min(kWidth<T>, n - first), width = rounded<T>(columns);
        T* panel = out + first * k;
        const T* x = b.data + first * b.col;
        if (columns < width) std::fill_n(panel, k * width, T(0));
        if (b.row == 1) {
            dop::transposed(k, columns, x, b.col, panel, width);
            continue;
        }
        for (int64_t p = 0; p < k; ++p) {
            if (b.col == 1) std::copy_n(x + p * b.row, columns, panel + p * width);
            else for (int64_t i = 0; i < columns; ++i) panel[p * width + i] = x[p * b.row + i * b.col];
        }
    }
}

// Row blocks `begin` to `end` (of `row_blocks`, of about equal height) of one panel of y.
template <typename T>
void column_block(const Product<T>& p, const T* panel, int64_t first, int64_t row_blocks, int64_t begin, int64_t end, bool starts) {
    const int64_t columns = std::min(kWidth<T>, p.n - first), width = rounded<T>(columns), vectors = width / kLanes<T>;
    const int64_t depths = (p.k + kDepth - 1) / kDepth;
    T edge[kRows * kWidth<T>];
    for (int64_t d = 0; d < depths; ++d) {
        const int64_t top = p.k * d / depths, depth = p.k * (d + 1) / depths - top;
        for (int64_t q = begin; q < end; ++q) {
            const int64_t i = p.m * q / row_blocks, rows = p.m * (q + 1) / row_blocks - i;
            const T* a = p.a.data + i * p.a.row + top;
            T* y = p.y.data + i * p.y.row + first;
            const T* start = d ? y : starts ? p.residual.data + i * p.residual.row + first : nullptr;
            const int64_t step = d ? p.y.row : p.residual.row;
            const auto run = block_of<T>(rows, vectors);
            if (columns == width) {
                run(depth, a, p.a.row, panel + top * width, start, step, y, p.y.row);
                continue;
            }
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t v = 0; v < width; ++v) edge[r * width + v] = start && v < columns ? start[r * step + v] : T(0);
            run(depth, a, p.a.row, panel + top * width, edge, width, edge, width);
            for (int64_t r = 0; r < rows; ++r) std::copy_n(edge + r * width, columns, y + r * p.y.row);
        }
    }
}

// y = alpha a b by panels of b, and the residual where the sums may start with it; says whether they do.
template <typename T>
bool multiply(const Product<T>& p, const T* packed) {
    const bool starts = p.residual.data && p.residual.col == 1 && p.alpha == T(1);
    const int64_t count = (p.n + kWidth<T> - 1) / kWidth<T>, row_blocks = (p.m + kRows - 1) / kRows;
    const auto part = [&](int64_t j, int64_t begin, int64_t end) {
        column_block(p, packed + j * kWidth<T> * p.k, j * kWidth<T>, row_blocks, begin, end, starts);
    };
    const int64_t threads = (p.m + kLoadedRows) * p.n * p.k < kParallelWork ? 1 : omp_get_max_threads();
    if (threads == 1) {
        for (int64_t j = 0; j < count; ++j) part(j, 0, row_blocks);
        return starts;
    }
    // A thread has the same columns in every call, so that its panels may stay in its cache; of few panels some rows.
    const int64_t parts = std::min(row_blocks, (threads + count - 1) / count);
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t j = 0; j < count; ++j)
        for (int64_t q = 0; q < parts; ++q) part(j, row_blocks * q / parts, row_blocks * (q + 1) / parts);
    return starts;
}

template <typename T>
void scale(const Product<T>& p) {
    for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j) p.y.data[i * p.y.row + j] *= p.alpha;
}

}  // namespace daceopt::panels
