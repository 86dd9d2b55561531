// Batches of products that share a factor, as few long products: a BLAS then packs that factor once for many, and divides all
// the rows among its threads.
//
// `memory(bytes)` is where a copy may stand until the next one; it may throw std::bad_alloc. `multiply` is given products
// without bias and residual. Both functions say whether they did the whole of p.
#pragma once
#include "daceopt/contraction_impl.h"
#include "daceopt/cpu.h"

namespace daceopt::folding {

// Below these a copy costs more than one product saves (docs/decisions/dense-libraries.md).
constexpr int64_t kWide = 64;                // columns that each copied row is multiplied by
constexpr int64_t kDeep = 1024;              // terms of each sum that is written transposed
constexpr int64_t kWork = int64_t(1) << 20;  // multiplications of the whole batch
constexpr int64_t kLong = 2048;              // rows of a product; more would need more memory, and are not faster
constexpr int64_t kTile = 64;

template <typename M>
bool shared(const M& x) {
    return std::all_of(x.batch.begin(), x.batch.end(), [](int64_t step) { return step == 0; });
}

// Strides of matrices that stand one after the other, row by row.
template <typename M>
void lay_out(M& x, int64_t rows, int64_t cols, const BatchSizes& extents) {
    x.row = cols, x.col = 1;
    int64_t step = rows * cols;
    for (size_t d = extents.size(); d-- > 0; step *= extents[d]) x.batch[d] = step;
}

// `rows`: of each product, which may be many without a copy.
template <typename T>
bool is_worth(const Product<T>& p, int64_t rows) {
    return !p.batch.empty() && p.n >= kWide && rows < kLong / 2 && p.m * p.n * p.k * detail::count(p.batch) >= kWork;
}

template <typename P>
bool becomes_one(P& p) {
    detail::collapse_batch(p);
    detail::merge_batch_into_rows(p);
    return p.batch.empty();
}

// Matrices `begin` to `end` of a batch.
struct Part {
    int64_t begin, end;
};

// A batch of products of so many rows in parts of about equal size that are long enough together.
template <typename Multiply>
void in_parts(int64_t blocks, int64_t rows, const Multiply& multiply) {
    const int64_t most = std::max<int64_t>(1, kLong / rows), parts = (blocks + most - 1) / most;
    for (int64_t i = 0; i < parts; ++i) multiply(Part{blocks * i / parts, blocks * (i + 1) / parts});
}

// The rows of a part of x's matrices, one after the other; x has unit stride in its rows or in its columns.
template <typename T>
void copy_rows(const Matrix<const T>& x, int64_t rows, int64_t cols, const BatchSizes& extents, Part part, T* out) {
#pragma omp parallel for collapse(3) if ((part.end - part.begin) * rows * cols > kParallelElements)
    for (int64_t block = part.begin; block < part.end; ++block)
        for (int64_t i = 0; i < rows; i += kTile)
            for (int64_t j = 0; j < cols; j += kTile) {
                const T* in = x.data + detail::batch_offset(x, extents, block) + i * x.row + j * x.col;
                T* to = out + ((block - part.begin) * rows + i) * cols + j;
                const int64_t height = std::min(kTile, rows - i), width = std::min(kTile, cols - j);
                if (x.col == 1)
                    for (int64_t r = 0; r < height; ++r) std::copy_n(in + r * x.row, width, to + r * cols);
                else
                    dop::transposed(height, width, in, x.col, to, cols);
            }
}

// Where only the layout of a keeps a batch from being rows: by copies of a's rows.
template <typename T, typename Memory, typename Multiply>
bool multiply_copied(const Product<T>& p, const Memory& memory, const Multiply& multiply) {
    if (!is_worth(p, p.m) || !shared(p.b) || std::count(p.a.batch.begin(), p.a.batch.end(), 0)) return false;
    Product<T> one = p;
    one.bias.data = one.residual.data = nullptr;
    lay_out(one.a, p.m, p.k, p.batch);
    if (!becomes_one(one)) return false;
    in_parts(detail::count(p.batch), p.m, [&](Part part) {
        Product<T> rows = one;
        rows.m = (part.end - part.begin) * p.m;
        T* copy = static_cast<T*>(memory(rows.m * p.k * sizeof(T)));
        copy_rows(p.a, p.m, p.k, p.batch, part, copy);
        rows.a.data = copy;
        rows.y.data += part.begin * p.m * one.y.row;
        multiply(rows);
    });
    return true;
}

// y = a b, for a that the batch shares, as y^T = b^T a^T which is transposed afterwards: a BLAS is slow where the columns of
// b stand in memory.
template <typename T, typename Memory, typename Multiply>
bool multiply_transposed(const Product<T>& p, const Memory& memory, const Multiply& multiply) {
    if (!is_worth(p, p.n) || p.k < kDeep || !shared(p.a) || p.b.row != 1) return false;
    Product<T> one = p;
    one.bias.data = one.residual.data = nullptr;
    detail::flip(one);
    lay_out(one.y, p.n, p.m, p.batch);
    if (!becomes_one(one)) return false;
    in_parts(detail::count(p.batch), p.n, [&](Part part) {
        Product<T> rows = one;
        rows.m = (part.end - part.begin) * p.n;
        rows.a.data += part.begin * p.n * one.a.row;
        rows.y.data = static_cast<T*>(memory(rows.m * p.m * sizeof(T)));
        multiply(rows);
#pragma omp parallel for collapse(2)
        for (int64_t block = part.begin; block < part.end; ++block)
            for (int64_t i = 0; i < p.m; i += kTile) {
                T* to = p.y.data + detail::batch_offset(p.y, p.batch, block) + i * p.y.row;
                const T* from = rows.y.data + (block - part.begin) * p.n * p.m + i;
                dop::transposed(std::min(kTile, p.m - i), p.n, from, p.m, to, p.y.row);
            }
    });
    return true;
}

}  // namespace daceopt::folding
