// Matrix products of float32 by oneDNN, without MKL: its sgemm, after transposing the right factor where that is faster.
#include "daceopt/cpu.h"
#include "daceopt/onednn_blas.h"
#include "daceopt/onednn_cache.h"

namespace daceopt {
namespace {

constexpr int kTransposed = -2;  // a scratch beside those of arguments, which have positive numbers
constexpr int64_t kTile = 64;

// Where the columns of b stand in memory, as those of a layer's weights do, sgemm is up to 6 times slower than where rows do,
// unless the product is long both ways or has few rows (docs/decisions/dense-libraries.md).
bool pays(const Product<float>& p) {
    constexpr int64_t kFew = 12, kMany = 1024, kSmall = int64_t(1) << 15;
    return p.batch.empty() && p.b.col != 1 && p.m >= kFew && (p.m < kMany || p.n < kMany) && p.n * p.k >= kSmall;
}

void transpose_into(float* to, const Product<float>& p) {
#pragma omp parallel for collapse(2)
    for (int64_t i = 0; i < p.k; i += kTile)
        for (int64_t j = 0; j < p.n; j += kTile)
            dop::transposed(std::min(kTile, p.k - i), std::min(kTile, p.n - j), p.b.data + j * p.b.col + i, p.b.col,
                            to + i * p.n + j, p.n);
}

}  // namespace

void contraction_onednn(const Product<float>& product) {
    detail::guarded("Contraction", [&] {
        contract<OneDnn, float>(product, [](Product<float>& p) {
            if (!pays(p)) return;
            float* rows = static_cast<float*>(detail::scratch(kTransposed).get(p.k * p.n * sizeof(float)));
            transpose_into(rows, p);
            p.b = {rows, p.n, 1, {}};
        });
    });
}

}  // namespace daceopt
