// Products of bfloat16 factors for machines, or processes, without units for them: the operands are widened before a
// product of floats. The same numbers as the units give, up to the order of additions.
#pragma once
#include "daceopt/contraction_impl.h"

namespace daceopt {
namespace detail {

struct Floats {  // an operand as floats: itself, or a contiguous copy that broadcasts where it does
    Matrix<const float> matrix;
    std::unique_ptr<float[]> memory;
};

inline Floats floats(const Place& x, int64_t rows, int64_t cols, const BatchSizes& extents) {
    if (!x.data || x.type == Element::kFloat) return {{static_cast<const float*>(x.data), x.row, x.col, x.batch}, nullptr};
    const int64_t kept_rows = x.row ? rows : 1, kept_cols = x.col ? cols : 1;
    BatchSizes kept = extents, strides = BatchSizes::zeros(extents.size());
    int64_t step = kept_rows * kept_cols;
    for (size_t d = extents.size(); d-- > 0;) {
        if (x.batch[d] == 0) { kept[d] = 1; continue; }
        strides[d] = step;
        step *= extents[d];
    }
    std::unique_ptr<float[]> memory(new float[step]);
    const int64_t blocks = count(kept);
    float* out = memory.get();
#pragma omp parallel for collapse(2) if (step > kParallelElements)
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < kept_rows; ++i) {
            const uint16_t* in = static_cast<const uint16_t*>(x.data) + batch_offset(x, kept, block) + i * x.row;
            float* row = out + (block * kept_rows + i) * kept_cols;
            if (x.col == 1)
                for (int64_t j = 0; j < kept_cols; ++j) row[j] = from_bfloat16(in[j]);
            else
                for (int64_t j = 0; j < kept_cols; ++j) row[j] = from_bfloat16(in[j * x.col]);
        }
    return {{out, x.row ? kept_cols : 0, x.col ? 1 : 0, strides}, std::move(memory)};
}

inline void round_into(const Place& y, const float* from, int64_t m, int64_t n, const BatchSizes& extents) {
    const int64_t blocks = count(extents);
#pragma omp parallel for collapse(2) if (blocks * m * n > kParallelElements)
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < m; ++i) {
            uint16_t* out = static_cast<uint16_t*>(y.data) + batch_offset(y, extents, block) + i * y.row;
            const float* in = from + (block * m + i) * n;
            for (int64_t j = 0; j < n; ++j) out[j * y.col] = to_bfloat16(in[j]);
        }
}

}  // namespace detail

template <typename Blas>
void widened(const NarrowProduct& p) try {
    using namespace detail;
    const auto a = floats(p.a, p.m, p.k, p.batch), b = floats(p.b, p.k, p.n, p.batch);
    const auto bias = floats(p.bias, p.m, p.n, p.batch), residual = floats(p.residual, p.m, p.n, p.batch);
    Product<float> wide{p.m, p.n, p.k, p.batch, p.alpha, a.matrix, b.matrix, bias.matrix, residual.matrix, {}, p.relu};
    if (p.y.type == Element::kFloat) {
        wide.y = {static_cast<float*>(p.y.data), p.y.row, p.y.col, p.y.batch};
        return contract<Blas, float>(wide);
    }
    BatchSizes strides = p.batch;
    int64_t step = p.m * p.n;
    for (size_t d = p.batch.size(); d-- > 0; step *= p.batch[d]) strides[d] = step;
    std::unique_ptr<float[]> result(new float[step]);
    wide.y = {result.get(), p.n, 1, strides};
    contract<Blas, float>(wide);
    round_into(p.y, result.get(), p.m, p.n, p.batch);
} catch (const std::bad_alloc&) {
    fail("Contraction", "out of memory");
}

}  // namespace daceopt
