// Products of bfloat16 by oneDNN, on the machine's AMX or AVX-512 units: sums in float, bias and residual added to them,
// the result rounded once.
#include "daceopt/contraction_held.h"
#include "daceopt/contraction_widened.h"
#include "daceopt/onednn_blas.h"
#include "daceopt/onednn_cache.h"

namespace daceopt {
namespace {

using namespace detail;

// An operand over [batch..., rows, columns]; extents along which it broadcasts are 1.
Tensor tensor_of(const Place& x, const BatchSizes& batch, int64_t rows, int64_t cols) {
    Sizes dims = batch, strides = x.batch;
    dims.append({rows, cols});
    strides.append({x.row, x.col});
    int64_t step = 1;
    for (size_t d = dims.size(); d-- > 0;) {
        if (strides[d] == 0) dims[d] = 1, strides[d] = step;
        step = std::max(step, dims[d] * strides[d]);
    }
    return {x.data, dims, strides, x.type};
}

memory::desc layout(const Tensor& x) { return memory::desc(x.dims, data_type_of(x.type), x.strides); }

// A contiguous copy for factors with unit stride in neither dimension, or rows that overlap.
std::unique_ptr<uint16_t[]> compact(Place& x, int64_t rows, int64_t cols, const BatchSizes& extents) {
    normalise(x, rows, cols);
    if (blas_ready(x, rows, cols)) return nullptr;
    Matrix<const uint16_t> matrix{static_cast<const uint16_t*>(x.data), x.row, x.col, x.batch};
    auto copy = pack(matrix, rows, cols, extents);
    x = {copy.get(), matrix.row, matrix.col, matrix.batch, x.type};
    return copy;
}

dnnl::post_ops operations_of(const NarrowProduct& p, const Tensor& bias, const Tensor& residual) {
    dnnl::post_ops operations;
    if (p.alpha != 1.f) operations.append_eltwise(dnnl::algorithm::eltwise_linear, p.alpha, 0.f);
    for (const Tensor* added : {&bias, &residual})
        if (added->data) operations.append_binary(dnnl::algorithm::binary_add, layout(*added));
    return operations;
}

// Prepared weights have a layout of the kernel's choice, and the type of the other factor.
std::shared_ptr<Entry> make(const NarrowProduct& p, const Tensor& a, const Tensor& b, const Tensor& bias,
                            const Tensor& residual, const Tensor& y, bool packs) {
    const memory::desc prepared(b.dims, data_type_of(a.type), memory::format_tag::any);
    const dnnl::matmul::primitive_desc pd(engine(), layout(a), packs ? prepared : layout(b), layout(y),
                                          attributes(operations_of(p, bias, residual)));
    auto entry = std::make_shared<Entry>();
    entry->primitive = dnnl::matmul(pd);
    entry->scratchpad = pd.scratchpad_desc();
    entry->implementation = pd.impl_info_str();
    entry->add(DNNL_ARG_SRC, layout(a), pd.src_desc(), false);
    entry->add(DNNL_ARG_WEIGHTS, layout(b), pd.weights_desc(), false);
    int position = p.alpha != 1.f;
    for (const Tensor* added : {&bias, &residual})
        if (added->data)
            entry->add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(position++) | DNNL_ARG_SRC_1, layout(*added), layout(*added), false);
    entry->add(DNNL_ARG_DST, layout(y), pd.dst_desc(), true);
    return entry;
}

// Weights of float32 as bfloat16, one after the other, for a product that does not prepare them.
std::unique_ptr<uint16_t[]> rounded(Place& x, int64_t rows, int64_t cols, const BatchSizes& extents) {
    if (x.type != Element::kFloat) return nullptr;
    BatchSizes kept = extents, strides = BatchSizes::zeros(extents.size());
    int64_t step = rows * cols;
    for (size_t d = extents.size(); d-- > 0; step *= kept[d]) {
        if (x.batch[d] == 0) kept[d] = 1;
        else strides[d] = step;
    }
    std::unique_ptr<uint16_t[]> copy(new uint16_t[step]);
    const int64_t blocks = count(kept);
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < rows; ++i) {
            const float* in = static_cast<const float*>(x.data) + batch_offset(x, kept, block) + i * x.row;
            for (int64_t j = 0; j < cols; ++j) copy[(block * rows + i) * cols + j] = to_bfloat16(in[j * x.col]);
        }
    x = {copy.get(), cols, 1, strides, Element::kBfloat16};
    return copy;
}

Key key_of(const NarrowProduct& p, const std::vector<const Tensor*>& operands) {
    Key key(1);
    std::memcpy(key.data(), &p.alpha, sizeof p.alpha);
    for (const Tensor* x : operands) append(key, *x);
    return key;
}

Cache& cache() {
    static Cache instance;
    return instance;
}

// False where oneDNN has nothing but a reference kernel, which is orders of magnitude slower than widening.
bool multiply(const NarrowProduct& p, WeightMemory* kept) {
    if (p.batch.size() + 2 > Sizes::kMost) return false;
    const Tensor a = tensor_of(p.a, p.batch, p.m, p.k), b = tensor_of(p.b, p.batch, p.k, p.n);
    const Tensor bias = tensor_of(p.bias, p.batch, p.m, p.n), residual = tensor_of(p.residual, p.batch, p.m, p.n);
    const Tensor y = tensor_of(p.y, p.batch, p.m, p.n);
    Key key = key_of(p, {&a, &b, &bias, &residual, &y});
    key.push_back(kept != nullptr);
    const Entry& entry = cache().get(key, [&] {
        try {
            return make(p, a, b, bias, residual, y, kept != nullptr);
        } catch (const dnnl::error&) {  // strides or broadcasts that no kernel takes
            return std::make_shared<Entry>();
        }
    });
    if (!entry.primitive || speed_of(entry.implementation) == Speed::kReference) return false;
    std::vector<void*> data{a.data, b.data};
    if (bias.data) data.push_back(bias.data);
    if (residual.data) data.push_back(residual.data);
    data.push_back(y.data);
    entry.run(data, kept);
    return true;
}

// With weights that are kept as the kernel wants them. False where they are not the right factor of what is computed: a result
// whose columns lie side by side is that of a product the other way round.
bool multiply_prepared(const NarrowProduct& given, WeightMemory* kept) {
    NarrowProduct p = given;
    if (!settle(p) || p.b.data != given.b.data || p.a.data == p.b.data) return false;
    normalise(p.b, p.k, p.n);
    const auto packed_a = compact(p.a, p.m, p.k, p.batch);
    return multiply(p, kept);
}

bool multiply_anew(const NarrowProduct& given) {
    NarrowProduct p = given;
    if (!settle(p)) return fail("Contraction", "the output's rows and columns are both strided"), true;
    const auto packed_a = compact(p.a, p.m, p.k, p.batch), packed_b = compact(p.b, p.k, p.n, p.batch);
    return multiply(p, nullptr);
}

}  // namespace

void contraction_onednn(const NarrowProduct& given, WeightMemory* kept) {
    guarded("Contraction", [&] {
        if (given.m == 0 || given.n == 0 || count(given.batch) == 0) return;
        const bool suits = !given.relu && given.k > 0 && has_bfloat16_units();  // oneDNN's relu turns NaN into 0
        if (suits && kept && multiply_prepared(given, kept)) return;
        NarrowProduct narrow = given;
        const auto weights = rounded(narrow.b, given.k, given.n, given.batch);
        if (!suits || !multiply_anew(narrow)) widened<OneDnn>(narrow);
    });
}

void contraction_onednn(const NarrowProduct& given) { contraction_onednn(given, nullptr); }

}  // namespace daceopt
