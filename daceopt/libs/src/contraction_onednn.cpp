// Matrix products of float32 by oneDNN, without MKL: its sgemm, of factors that are copied first where that is faster.
#include "daceopt/contraction_folding.h"
#include "daceopt/onednn_blas.h"
#include "daceopt/onednn_cache.h"
#include "daceopt/scratch.h"

namespace daceopt {
namespace {

using detail::Purpose;

auto memory(Purpose purpose) {
    return [purpose](size_t bytes) { return detail::scratch(purpose, bytes); };
}

// Where the columns of b stand in memory, as those of a layer's weights do, sgemm is up to 6 times slower than where rows do,
// unless the product is long both ways or has few rows (docs/decisions/dense-libraries.md).
bool pays(const Product<float>& p) {
    constexpr int64_t kFew = 12, kMany = 1024, kSmall = int64_t(1) << 15;
    return p.batch.empty() && p.b.col != 1 && p.m >= kFew && (p.m < kMany || p.n < kMany) && p.n * p.k >= kSmall;
}

void multiply(Product<float> p) {
    if (folding::multiply_transposed(p, memory(Purpose::kResult), multiply) || folding::multiply_copied(p, memory(Purpose::kRows), multiply)) return;
    if (pays(p)) {
        float* rows = static_cast<float*>(memory(Purpose::kTurned)(p.k * p.n * sizeof(float)));
        folding::copy_rows(p.b, p.k, p.n, {}, {0, 1}, rows);
        p.b = {rows, p.n, 1, {}};
    }
    detail::multiply<OneDnn>(p);
}

}  // namespace

void contraction_onednn(const Product<float>& product) {
    detail::guarded("Contraction", [&] { contract_by<float>(product, multiply); });
}

}  // namespace daceopt
