// Batches of products that share a factor, as one long product: a BLAS then packs that factor once, not once for each, and
// divides all the rows among its threads.
//
// `memory(bytes)` is where a copy may stand until the call returns; it may throw std::bad_alloc.
#pragma once
#include "daceopt/contraction_impl.h"
#include "daceopt/cpu.h"

namespace daceopt::folding {

// Below these a copy costs more than one product saves (docs/decisions/dense-libraries.md).
constexpr int64_t kWide = 64;               // columns that each copied row is multiplied by
constexpr int64_t kDeep = 1024;             // terms of each sum that is written transposed
constexpr int64_t kWork = int64_t(1) << 20;  // multiplications of the whole batch
constexpr int64_t kTile = 64;

template <typename M>
bool shared(const M& x) {
    return std::all_of(x.batch.begin(), x.batch.end(), [](int64_t step) { return step == 0; });
}

// Strides of matrices that stand one after the other, row by row.
template <typename M>
void lay_out(M& x, int64_t rows, int64_t cols, const std::vector<int64_t>& extents) {
    x.row = cols, x.col = 1;
    int64_t step = rows * cols;
    for (size_t d = extents.size(); d-- > 0; step *= extents[d]) x.batch[d] = step;
}

template <typename T>
bool is_worth(const Product<T>& p) {
    return !p.batch.empty() && p.n >= kWide && p.m * p.n * p.k * detail::count(p.batch) >= kWork;
}

template <typename P>
bool becomes_one(P& p) {
    detail::collapse_batch(p);
    detail::merge_batch_into_rows(p);
    return p.batch.empty();
}

// The rows of all of x's matrices, one after the other; x has unit stride in its rows or in its columns.
template <typename T>
void copy_rows(const Matrix<const T>& x, int64_t rows, int64_t cols, const std::vector<int64_t>& extents, T* out) {
    const int64_t blocks = detail::count(extents);
#pragma omp parallel for collapse(3) if (blocks * rows * cols > kParallelElements)
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < rows; i += kTile)
            for (int64_t j = 0; j < cols; j += kTile) {
                const T* in = x.data + detail::batch_offset(x, extents, block) + i * x.row + j * x.col;
                T* to = out + (block * rows + i) * cols + j;
                const int64_t height = std::min(kTile, rows - i), width = std::min(kTile, cols - j);
                if (x.col == 1)
                    for (int64_t r = 0; r < height; ++r) std::copy_n(in + r * x.row, width, to + r * cols);
                else
                    dop::transposed(height, width, in, x.col, to, cols);
            }
}

// Where only the layout of a keeps a batch from being rows: p becomes one product of a's copy.
template <typename T, typename Memory>
bool gather_rows(Product<T>& p, const Memory& memory) {
    const auto& steps = p.a.batch;
    if (!is_worth(p) || !shared(p.b) || std::count(steps.begin(), steps.end(), 0)) return false;
    Product<T> one = p;
    lay_out(one.a, p.m, p.k, p.batch);
    if (!becomes_one(one)) return false;
    T* rows = static_cast<T*>(memory(one.m * p.k * sizeof(T)));
    copy_rows(p.a, p.m, p.k, p.batch, rows);
    one.a.data = rows;
    p = one;
    return true;
}

// y = a b, for a that the batch shares, as one product y^T = b^T a^T whose result is transposed afterwards: a BLAS is slow
// where the columns of b stand in memory.
template <typename T, typename Memory, typename Multiply>
bool multiply_transposed(const Product<T>& p, const Memory& memory, const Multiply& multiply) {
    if (!is_worth(p) || p.k < kDeep || !shared(p.a) || p.b.row != 1) return false;
    Product<T> one = p;
    one.bias.data = one.residual.data = nullptr;
    detail::flip(one);
    lay_out(one.y, p.n, p.m, p.batch);
    if (!becomes_one(one)) return false;
    one.y.data = static_cast<T*>(memory(one.m * p.m * sizeof(T)));
    multiply(one);
    const int64_t blocks = detail::count(p.batch);
#pragma omp parallel for collapse(2)
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < p.m; i += kTile) {
            T* to = p.y.data + detail::batch_offset(p.y, p.batch, block) + i * p.y.row;
            const T* from = one.y.data + block * p.n * p.m + i;
            dop::transposed(std::min(kTile, p.m - i), p.n, from, p.m, to, p.y.row);
        }
    return true;
}

}  // namespace daceopt::folding
