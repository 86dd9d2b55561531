// Batched matrix products over arbitrary strides on top of any BLAS: decides transposition, packing and batching at run time.
//
// A Blas has, for the element type T, column-major
//   gemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, c, ldc)
//   gemm_batch(transa, transb, m, n, k, alpha, a[], lda, b[], ldb, c[], ldc, count)
// that overwrite c.
#pragma once
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "daceopt/contraction.h"

namespace daceopt {

// Below this many elements a parallel region costs more than it saves.
constexpr int64_t kParallelElements = 16384;

namespace detail {

template <typename M>
void transpose(M& x) { std::swap(x.row, x.col); }

// y^T = b^T a^T
template <typename P>
void flip(P& p) {
    std::swap(p.a, p.b);
    std::swap(p.m, p.n);
    transpose(p.a); transpose(p.b); transpose(p.bias); transpose(p.residual); transpose(p.y);
}

template <typename M>
bool adjacent(const M& x, size_t outer, size_t inner, int64_t extent) {
    return x.data == nullptr || x.batch[outer] == x.batch[inner] * extent;
}

template <typename P>
void erase_batch(P& p, size_t d) {
    p.batch.erase(d);
    for (auto* x : {&p.a, &p.b, &p.bias, &p.residual}) x->batch.erase(d);
    p.y.batch.erase(d);
}

// Batch dimensions of extent 1 vanish; neighbours that step alike in every operand become one.
template <typename P>
void collapse_batch(P& p) {
    for (size_t d = p.batch.size(); d-- > 0;)
        if (p.batch[d] == 1) erase_batch(p, d);
    for (size_t d = p.batch.size(); d-- > 1;) {
        const int64_t n = p.batch[d];
        if (!adjacent(p.a, d - 1, d, n) || !adjacent(p.b, d - 1, d, n) || !adjacent(p.y, d - 1, d, n) ||
            !adjacent(p.bias, d - 1, d, n) || !adjacent(p.residual, d - 1, d, n)) continue;
        p.batch[d] *= p.batch[d - 1];
        erase_batch(p, d - 1);
    }
}

template <typename M>
bool extends_rows(const M& x, size_t d, int64_t m) {
    return x.data == nullptr || x.batch[d] == x.row * m;
}

// A batch dimension that b does not have, and along which the rows of a and y go on, is more rows.
template <typename P>
void merge_batch_into_rows(P& p) {
    for (size_t d = p.batch.size(); d-- > 0;) {
        if (p.b.batch[d] != 0) continue;
        if (p.m == 1) p.a.row = p.a.batch[d], p.y.row = p.y.batch[d], p.bias.row = p.bias.batch[d], p.residual.row = p.residual.batch[d];
        else if (!extends_rows(p.a, d, p.m) || !extends_rows(p.y, d, p.m) || !extends_rows(p.bias, d, p.m) ||
                 !extends_rows(p.residual, d, p.m)) continue;
        p.m *= p.batch[d];
        erase_batch(p, d);
    }
}

template <typename M>
void exchange_rows(M& x, size_t d) { std::swap(x.row, x.batch[d]); }

// May what were rows be a batch, and a batch rows: is x, of `cols` columns with unit stride, still what a BLAS takes?
template <typename M>
bool takes_rows(const M& x, size_t d, int64_t cols) { return x.col == 1 && x.batch[d] >= cols; }

// Few long products instead of many short ones: the longest batch dimension that b does not have becomes the rows.
template <typename P>
void lengthen_rows(P& p) {
    size_t longest = p.batch.size();
    for (size_t d = 0; d < p.batch.size(); ++d)
        if (p.b.batch[d] == 0 && p.batch[d] > p.m && takes_rows(p.a, d, p.k) && takes_rows(p.y, d, p.n) &&
            (longest == p.batch.size() || p.batch[d] > p.batch[longest]))
            longest = d;
    if (longest == p.batch.size()) return;
    std::swap(p.m, p.batch[longest]);
    exchange_rows(p.a, longest); exchange_rows(p.y, longest);
    exchange_rows(p.bias, longest); exchange_rows(p.residual, longest);
    merge_batch_into_rows(p);
}

inline int64_t count(const BatchSizes& extents) {
    int64_t total = 1;
    for (int64_t n : extents) total *= n;
    return total;
}

template <typename M>
int64_t batch_offset(const M& x, const BatchSizes& extents, int64_t index) {
    int64_t offset = 0;
    for (size_t d = extents.size(); d-- > 0; index /= extents[d]) offset += index % extents[d] * x.batch[d];
    return offset;
}

// What a BLAS takes: unit stride in one dimension, and the other at least as long as the first.
template <typename M>
bool blas_ready(const M& x, int64_t rows, int64_t cols) {
    return (x.col == 1 && x.row >= cols) || (x.row == 1 && x.col >= rows);
}

// Strides of a dimension of extent 1 never count: give them the value that suits a BLAS.
template <typename M>
void normalise(M& x, int64_t rows, int64_t cols) {
    if (cols == 1 && rows == 1) { x.col = 1; x.row = 1; return; }
    if (cols == 1) { if (x.row == 1) x.col = rows; else x.col = 1; return; }
    if (rows == 1) { if (x.col == 1) x.row = cols; else x.row = 1; }
}

// Few batch dimensions, and rows of y with unit stride; false where its rows and columns are both strided.
template <typename P>
bool settle(P& p) {
    normalise(p.y, p.m, p.n);
    if (p.y.col != 1 || p.y.row < p.n) flip(p);
    collapse_batch(p);
    merge_batch_into_rows(p);
    lengthen_rows(p);
    normalise(p.y, p.m, p.n);
    if (p.y.col != 1) flip(p);  // one column, whose rows lie side by side since they were merged
    return p.y.col == 1;
}

// A contiguous copy of x for operands that no BLAS takes; broadcast batch dimensions stay broadcast.
template <typename T>
std::unique_ptr<T[]> pack(Matrix<const T>& x, int64_t rows, int64_t cols, const BatchSizes& extents) {
    BatchSizes kept = extents, strides = BatchSizes::zeros(extents.size());
    int64_t step = rows * cols;
    for (size_t d = extents.size(); d-- > 0;) {
        if (x.batch[d] == 0) { kept[d] = 1; continue; }
        strides[d] = step;
        step *= extents[d];
    }
    std::unique_ptr<T[]> copy(new T[step]);
    const int64_t blocks = count(kept);
    T* out = copy.get();
#pragma omp parallel for collapse(2) if (step > kParallelElements)
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < rows; ++i) {
            const T* in = x.data + batch_offset(x, kept, block) + i * x.row;
            for (int64_t j = 0; j < cols; ++j) out[(block * rows + i) * cols + j] = in[j * x.col];
        }
    x = {out, cols, 1, strides};
    return copy;
}

// y = activation(y + bias + residual), one pass; rows in parallel, columns in vectors.
template <typename T, bool kBias, bool kResidual, bool kRelu>
void epilogue_rows(const Product<T>& p, int64_t blocks) {
    const bool dense = (!kBias || p.bias.col == 1) && (!kResidual || p.residual.col == 1);
#pragma omp parallel for collapse(2) if (blocks * p.m * p.n > kParallelElements)
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < p.m; ++i) {
            T* y = p.y.data + batch_offset(p.y, p.batch, block) + i * p.y.row;
            const T* bias = kBias ? p.bias.data + batch_offset(p.bias, p.batch, block) + i * p.bias.row : nullptr;
            const T* residual = kResidual ? p.residual.data + batch_offset(p.residual, p.batch, block) + i * p.residual.row : nullptr;
            const int64_t bias_step = dense ? 1 : p.bias.col, residual_step = dense ? 1 : p.residual.col;
            auto element = [&](int64_t j, int64_t bs, int64_t rs) {
                T v = y[j];
                if (kBias) v += bias[j * bs];
                if (kResidual) v += residual[j * rs];
                return kRelu && v < T(0) ? T(0) : v;  // keeps NaN
            };
            if (dense) {
#pragma omp simd
                for (int64_t j = 0; j < p.n; ++j) y[j] = element(j, 1, 1);
            } else {
                for (int64_t j = 0; j < p.n; ++j) y[j] = element(j, bias_step, residual_step);
            }
        }
}

template <typename T>
void epilogue(const Product<T>& p) {
    const int64_t blocks = count(p.batch);
    const bool bias = p.bias.data, residual = p.residual.data;
    if (bias && residual) return p.relu ? epilogue_rows<T, true, true, true>(p, blocks) : epilogue_rows<T, true, true, false>(p, blocks);
    if (bias) return p.relu ? epilogue_rows<T, true, false, true>(p, blocks) : epilogue_rows<T, true, false, false>(p, blocks);
    if (residual) return p.relu ? epilogue_rows<T, false, true, true>(p, blocks) : epilogue_rows<T, false, true, false>(p, blocks);
    if (p.relu) epilogue_rows<T, false, false, true>(p, blocks);
}

template <typename T>
void zero(const Product<T>& p) {
    const int64_t blocks = count(p.batch);
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < p.m; ++i) std::fill_n(p.y.data + batch_offset(p.y, p.batch, block) + i * p.y.row, p.n, T(0));
}

// Row-major y = a b is column-major y^T = b^T a^T, so b goes first; an operand whose columns are dense is not transposed.
template <typename Blas, typename T>
void multiply(const Product<T>& p) {
    const char ta = p.a.col == 1 ? 'N' : 'T', tb = p.b.col == 1 ? 'N' : 'T';
    const int64_t lda = ta == 'N' ? p.a.row : p.a.col, ldb = tb == 'N' ? p.b.row : p.b.col;
    const int64_t blocks = count(p.batch);
    if (blocks == 1) return Blas::gemm(tb, ta, p.n, p.m, p.k, p.alpha, p.b.data, ldb, p.a.data, lda, p.y.data, p.y.row);
    std::vector<const T*> a(blocks), b(blocks);
    std::vector<T*> y(blocks);
    for (int64_t i = 0; i < blocks; ++i) {
        a[i] = p.a.data + batch_offset(p.a, p.batch, i);
        b[i] = p.b.data + batch_offset(p.b, p.batch, i);
        y[i] = p.y.data + batch_offset(p.y, p.batch, i);
    }
    Blas::gemm_batch(tb, ta, p.n, p.m, p.k, p.alpha, b.data(), ldb, a.data(), lda, y.data(), p.y.row, blocks);
}

}  // namespace detail

// y = activation(alpha a b + bias + residual); y must have unit stride in its rows or in its columns. `run`
// multiplies what the BLAS can be given, and may replace its factors and its batch.
template <typename T, typename Run>
void contract_by(Product<T> p, const Run& run) try {
    using namespace detail;
    if (p.m == 0 || p.n == 0 || count(p.batch) == 0) return;
    if (!settle(p)) return fail("Contraction", "the output's rows and columns are both strided");
    if (p.k == 0) {
        zero(p);
        return epilogue(p);
    }
    normalise(p.a, p.m, p.k);
    normalise(p.b, p.k, p.n);
    std::unique_ptr<T[]> packed_a, packed_b;
    if (!blas_ready(p.a, p.m, p.k)) packed_a = pack(p.a, p.m, p.k, p.batch);
    if (!blas_ready(p.b, p.k, p.n)) packed_b = pack(p.b, p.k, p.n, p.batch);
    run(p);
    epilogue(p);
} catch (const std::bad_alloc&) {
    fail("Contraction", "out of memory");
}

template <typename Blas, typename T>
void contract(const Product<T>& p) {
    contract_by<T>(p, [](const Product<T>& product) { detail::multiply<Blas>(product); });
}

}  // namespace daceopt
