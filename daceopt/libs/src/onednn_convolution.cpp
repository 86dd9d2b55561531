// Convolutions by oneDNN. Weights take the layout the kernel prefers; activations too, when their own has no fast kernel.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>

#include "daceopt/depthwise.h"
#include "daceopt/onednn_cache.h"

namespace daceopt {
namespace {

using namespace detail;
using dnnl::algorithm;
using dnnl::prop_kind;

enum Pass : int64_t { kForward, kBackwardData, kBackwardWeights };

struct Problem {  // descriptions in the caller's layouts; src and dst also name their gradients
    memory::desc src, weights, bias, dst;
    memory::desc scale, shift, residual, added;  // of the epilogue; added: the residual in the layout of the result
    memory::dims strides, dilations, pads_begin, pads_end;
    Layout layout;
    bool clamps = false;       // the epilogue ends with a relu
    bool accumulates = false;  // the residual stands where the result does
    float slope = 0, ceiling = INFINITY;
};

memory::desc in_layout_of_result(const Tensor& residual, const Tensor& y) {
    return describe({nullptr, y.dims, y.strides, residual.type, y.is_blocked});
}

memory::desc describe_per_channel(const Tensor& numbers, size_t rank) {
    memory::dims dims(rank, 1);
    dims[1] = numbers.dims[0];
    return memory::desc(dims, data_type_of(numbers.type), memory::dims(rank, 1));
}

bool accumulates(const Epilogue& epilogue, const Tensor& y) { return epilogue.residual.data && epilogue.residual.data == y.data; }

// A slope of 0 makes NaN of -inf.
bool clamps(const Epilogue& epilogue) { return epilogue.relu && !(careful && epilogue.slope == 0); }

Problem describe_problem(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y, const Epilogue& epilogue,
                         const Window& window, int64_t groups, Layout layout) {
    Problem p;
    p.layout = layout;
    p.src = describe(x);
    p.weights = describe_weights(w, groups);
    p.dst = describe(y);
    if (bias.data) p.bias = memory::desc(bias.dims, data_type_of(bias.type), memory::format_tag::x);
    if (epilogue.scale.data) p.scale = describe_per_channel(epilogue.scale, y.dims.size());
    if (epilogue.shift.data) p.shift = describe_per_channel(epilogue.shift, y.dims.size());
    if (epilogue.residual.data) {
        p.residual = describe(epilogue.residual);
        p.added = in_layout_of_result(epilogue.residual, y);
        p.accumulates = accumulates(epilogue, y);
    }
    p.clamps = clamps(epilogue);
    p.slope = epilogue.slope;
    p.ceiling = epilogue.ceiling;
    p.strides = window.strides;
    for (int64_t d : window.dilations) p.dilations.push_back(d - 1);
    p.pads_begin = window.pads_begin;
    p.pads_end = window.pads_end;
    return p;
}

// What the kernel works on: the caller's layouts of activations, or its own choice.
struct Choice {
    memory::desc src, dst, added;
};

dnnl::post_ops operations(const Problem& p, const Choice& c) {
    dnnl::post_ops found;
    if (!p.scale.is_zero()) found.append_binary(algorithm::binary_mul, p.scale);
    if (!p.shift.is_zero()) found.append_binary(algorithm::binary_add, p.shift);
    if (p.accumulates)
        found.append_sum();
    else if (!c.added.is_zero())
        found.append_binary(algorithm::binary_add, c.added);
    if (p.clamps) {
        // oneDNN's clip makes its lower bound of NaN, and the relu makes NaN of that again: -inf * 0
        if (p.ceiling < INFINITY) found.append_eltwise(algorithm::eltwise_clip, -INFINITY, p.ceiling);
        found.append_prelu(0);
        if (p.slope == 0) found.append_eltwise(algorithm::eltwise_linear, 1, 0);  // -0 + 0 = 0
    }
    return found;
}

bool has_operations(const Problem& p) {
    return p.clamps || !p.scale.is_zero() || !p.shift.is_zero() || !p.added.is_zero();
}

// What is added in the layout of the kernel's own choice, which is that of its result; kernels take no other there.
memory::desc free_added(const Problem& p) {
    return p.added.is_zero() || p.added.get_data_type() != p.dst.get_data_type() ? p.added : any(p.added);
}

memory::desc added_of(const dnnl::convolution_forward::primitive_desc& pd, int place) {
    algorithm kind;
    memory::desc added;
    pd.get_primitive_attr().get_post_ops().get_params_binary(place, kind, added);
    return added.get_format_kind() == memory::format_kind::any ? pd.dst_desc() : added;
}

// Weights of any layout, in the type of the other factor: wider ones are rounded when they are prepared.
memory::desc free_weights(const Problem& p, const memory::desc& factor) {
    return memory::desc(p.weights.get_dims(), factor.get_data_type(), memory::format_tag::any);
}

dnnl::convolution_forward::primitive_desc forward(const Problem& p, const Choice& c) {
    const auto weights = free_weights(p, p.src);
    if (p.bias.is_zero())
        return {engine(), prop_kind::forward_training, algorithm::convolution_direct, c.src, weights, c.dst, p.strides,
                p.dilations, p.pads_begin, p.pads_end, attributes(operations(p, c))};
    return {engine(), prop_kind::forward_training, algorithm::convolution_direct, c.src, weights, p.bias, c.dst, p.strides,
            p.dilations, p.pads_begin, p.pads_end, attributes(operations(p, c))};
}

// Backward passes name the forward pass that they belong to; that of narrow factors has narrow operands throughout, also
// where the gradient is wide.
dnnl::convolution_forward::primitive_desc hint(const Problem& p) {
    const auto narrow = memory::data_type::bf16;
    bool has_narrow = false;
    for (const auto* x : {&p.src, &p.weights, &p.dst}) has_narrow = has_narrow || x->get_data_type() == narrow;
    const auto operand = [&](const memory::desc& x) {
        return memory::desc(x.get_dims(), has_narrow ? narrow : x.get_data_type(), memory::format_tag::any);
    };
    const auto weights = operand(p.weights), src = operand(p.src), dst = operand(p.dst);
    return {engine(), prop_kind::forward_training, algorithm::convolution_direct, src, weights, dst, p.strides, p.dilations,
            p.pads_begin, p.pads_end};
}

dnnl::convolution_backward_data::primitive_desc backward_data(const Problem& p, const Choice& c) {
    return {engine(), algorithm::convolution_direct, c.src, free_weights(p, p.dst), c.dst, p.strides, p.dilations,
            p.pads_begin, p.pads_end, hint(p), attributes()};
}

dnnl::convolution_backward_weights::primitive_desc backward_weights(const Problem& p, const Choice& c) {
    return {engine(), algorithm::convolution_direct, c.src, any(p.weights), c.dst, p.strides, p.dilations, p.pads_begin,
            p.pads_end, hint(p), attributes()};
}

// Rows of the result too short to fill the registers of the channels-last kernels: weights dominate, and a copy of the few
// activations into the blocked layout pays (10 to 80 % faster, docs/decisions/dense-libraries.md).
bool prefers_blocked(const Problem& p) {
    constexpr int64_t kShortRow = 8;
    return p.dst.get_dims().back() < kShortRow && p.weights.get_dims().back() > 1 && p.weights.get_ndims() == p.src.get_ndims();
}

bool is_last(const memory::desc& x) { return x == channels_last(x); }

// An operand in a layout. Images of fewer channels than a block has, such as colors, stay as they are where others are in blocks.
memory::desc in_layout(const memory::desc& x, Layout layout) {
    if (x.is_zero()) return x;
    if (layout == Layout::kFirst) return channels_first(x);
    if (layout == Layout::kLast) return channels_last(x);
    return x.get_dims()[1] < kBlock ? x : blocked(x.get_dims(), x.get_data_type());
}

Choice in_layout(const Problem& p, Layout layout) {
    return {in_layout(p.src, layout), in_layout(p.dst, layout), in_layout(p.added, layout)};
}

// What to try, the best guess first. Where one operand is channels-last and the other is not, only that other one is copied.
std::vector<Choice> choices_of(const Problem& p, bool prefers_blocked) {
    const Choice given{p.src, p.dst, p.added}, free{any(p.src), any(p.dst), free_added(p)};
    if (p.layout != Layout::kFastest) return {in_layout(p, p.layout), given, free};
    std::vector<Choice> choices{given, free};
    if (is_last(p.src) != is_last(p.dst)) choices = {given, in_layout(p, Layout::kLast), free};
    if (prefers_blocked) std::swap(choices.front(), choices.back());
    return choices;
}

// The first of the choices of layouts whose kernel is of the faster class; a choice may have no kernel at all.
template <typename Make>
auto fastest(const Problem& p, bool prefers_blocked, Make make) {
    const std::vector<Choice> choices = choices_of(p, prefers_blocked);
    const Choice free{any(p.src), any(p.dst), free_added(p)};
    std::optional<decltype(make(p, free))> best;
    for (const Choice& choice : choices) {
        try {
            auto found = make(p, choice);
            if (!best || speed_of(found.impl_info_str()) < speed_of(best->impl_info_str())) best = found;
        } catch (const dnnl::error&) {  // strides that no kernel takes
            continue;
        }
        if (speed_of(best->impl_info_str()) == Speed::kMade) break;
    }
    return best ? *best : make(p, free);  // whose error says what is wrong
}

template <typename Descriptor>
std::shared_ptr<Entry> entry_of(const Descriptor& pd, const dnnl::primitive& primitive) {
    auto entry = std::make_shared<Entry>();
    entry->primitive = primitive;
    entry->scratchpad = pd.scratchpad_desc();
    entry->implementation = pd.impl_info_str();
    return entry;
}

// y = y * operand or y + operand
std::shared_ptr<Entry> make_pass(algorithm kind, const memory::desc& y, const memory::desc& operand, const memory::desc& wanted) {
    const dnnl::binary::primitive_desc pd(engine(), kind, y, wanted, y, attributes());
    auto entry = entry_of(pd, dnnl::binary(pd));
    entry->add(DNNL_ARG_SRC_0, y, y, false);
    entry->add(DNNL_ARG_SRC_1, operand, wanted, false);
    entry->add(DNNL_ARG_DST, y, y, true);
    return entry;
}

std::shared_ptr<Entry> make_forward(const Problem& p);

// The epilogue in passes of its own, but for what clamps.
std::shared_ptr<Entry> make_in_passes(const Problem& p) {
    Problem plain = p;
    plain.scale = plain.shift = plain.residual = plain.added = memory::desc();
    plain.clamps = false;
    auto first = make_forward(plain);
    Entry* last = first.get();
    const auto pass = [&](algorithm kind, const memory::desc& operand, const memory::desc& wanted) {
        if (operand.is_zero()) return;
        last->after = make_pass(kind, p.dst, operand, wanted);
        last = last->after.get();
    };
    pass(algorithm::binary_mul, p.scale, p.scale);
    pass(algorithm::binary_add, p.shift, p.shift);
    pass(algorithm::binary_add, p.residual, p.added);
    return first;
}

// A fast kernel that adds to what stands where its result will: one array less to bring into the caches.
std::optional<dnnl::convolution_forward::primitive_desc> accumulating(const Problem& p) {
    for (const Choice& choice : choices_of(p, false)) {
        if (choice.dst != p.dst) continue;
        try {
            auto found = forward(p, choice);
            if (speed_of(found.impl_info_str()) == Speed::kMade) return found;
        } catch (const dnnl::error&) {
            continue;
        }
    }
    return std::nullopt;
}

std::shared_ptr<Entry> entry_of(const Problem& p, const dnnl::convolution_forward::primitive_desc& pd) {
    auto entry = entry_of(pd, dnnl::convolution_forward(pd));
    entry->add(DNNL_ARG_SRC, p.src, pd.src_desc(), false);
    entry->add(DNNL_ARG_WEIGHTS, p.weights, pd.weights_desc(), false);
    if (!p.bias.is_zero()) entry->add(DNNL_ARG_BIAS, p.bias, p.bias, false);
    int place = 0;
    const auto operand = [&](int kind, const memory::desc& given, const memory::desc& wanted) {
        entry->add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(place) | kind, given, wanted, false);
        ++place;
    };
    if (!p.scale.is_zero()) operand(DNNL_ARG_SRC_1, p.scale, p.scale);
    if (!p.shift.is_zero()) operand(DNNL_ARG_SRC_1, p.shift, p.shift);
    if (p.accumulates)
        ++place;
    else if (!p.residual.is_zero())
        operand(DNNL_ARG_SRC_1, p.residual, added_of(pd, place));
    const memory::desc slope = memory::desc(memory::dims(p.dst.get_ndims(), 1), memory::data_type::f32, memory::dims(p.dst.get_ndims(), 1));
    if (p.clamps && p.ceiling < INFINITY) ++place;
    if (p.clamps) operand(DNNL_ARG_WEIGHTS, slope, slope);
    entry->clamps = p.clamps;
    entry->accumulates = p.accumulates;
    entry->add(DNNL_ARG_DST, p.dst, pd.dst_desc(), true);
    return entry;
}

std::shared_ptr<Entry> make_forward(const Problem& p) {
    if (p.accumulates) {
        if (const auto pd = accumulating(p)) return entry_of(p, *pd);
        Problem apart = p;
        apart.accumulates = false;
        return make_forward(apart);
    }
    const auto pd = fastest(p, prefers_blocked(p), forward);
    if (has_operations(p) && speed_of(pd.impl_info_str()) == Speed::kReference) return make_in_passes(p);
    return entry_of(p, pd);
}

std::shared_ptr<Entry> make_backward_data(const Problem& p) {
    const auto pd = fastest(p, prefers_blocked(p), backward_data);
    auto entry = entry_of(pd, dnnl::convolution_backward_data(pd));
    entry->add(DNNL_ARG_DIFF_DST, p.dst, pd.diff_dst_desc(), false);
    entry->add(DNNL_ARG_WEIGHTS, p.weights, pd.weights_desc(), false);
    entry->add(DNNL_ARG_DIFF_SRC, p.src, pd.diff_src_desc(), true);
    return entry;
}

std::shared_ptr<Entry> make_backward_weights(const Problem& p) {
    const auto pd = fastest(p, false, backward_weights);
    auto entry = entry_of(pd, dnnl::convolution_backward_weights(pd));
    entry->add(DNNL_ARG_SRC, p.src, pd.src_desc(), false);
    entry->add(DNNL_ARG_DIFF_DST, p.dst, pd.diff_dst_desc(), false);
    entry->add(DNNL_ARG_DIFF_WEIGHTS, p.weights, pd.diff_weights_desc(), true);
    return entry;
}

int64_t bits_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

Key key_of(Pass pass, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y, const Epilogue& epilogue,
           const Window& window, int64_t groups, Layout layout) {
    Key key{pass, groups, static_cast<int64_t>(layout), clamps(epilogue), epilogue.slope == 0, bits_of(epilogue.ceiling)};
    key.push_back(accumulates(epilogue, y));
    for (const auto* tensor : {&x, &w, &bias, &y, &epilogue.scale, &epilogue.shift, &epilogue.residual}) append(key, *tensor);
    for (const auto* list : {&window.strides, &window.dilations, &window.pads_begin, &window.pads_end}) append(key, *list);
    return key;
}

bool is_empty(const Tensor& x) {
    for (int64_t n : x.dims)
        if (n == 0) return true;
    return false;
}

int64_t elements_of(const Tensor& x) {
    int64_t count = 1;
    for (int64_t n : x.dims) count *= n;
    return count;
}

// From the first element to the last, gaps included; there is one at least.
int64_t span_of(const Tensor& x) {
    int64_t span = 1;
    for (size_t d = 0; d < x.dims.size(); ++d) span += (x.dims[d] - 1) * x.strides[d];
    return span;
}

// The sum over no images.
void zero(const Tensor& x) {
    if (x.data) std::memset(x.data, 0, elements_of(x) * bytes_of(x.type));
}

// The relu in a pass of its own; NaN stays. The image has no gaps.
void clamp(const Tensor& x, float slope, float ceiling) {
    auto* values = static_cast<float*>(x.data);
    const int64_t count = elements_of(x);
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; ++i) {
        const float value = values[i] <= 0 ? (slope == 0 ? 0 : slope * values[i]) : values[i];
        values[i] = value > ceiling ? ceiling : value;
    }
}

Cache& cache() {
    static Cache instance;
    return instance;
}

// What stands where the result will, in memory of its own.
void* moved(const Tensor& residual) {
    const size_t bytes = describe(residual).get_size();
    return std::memcpy(scratch(Purpose::kResidual, bytes), residual.data, bytes);
}

const Tensor kNone{nullptr, {}, {}};
const Epilogue kNothing{kNone, kNone, kNone};

// A tensor of bfloat16 as floats in the same layout, for CPUs without units that multiply it.
class Widened {
public:
    explicit Widened(const Tensor& given) : wide_(given), given_(given) {
        if (!given.data || given.type == Element::kFloat) return;
        size_ = span_of(given);
        memory_.reset(new float[size_]);
        widen(given.data, memory_.get(), size_);
        wide_.data = memory_.get();
        wide_.type = Element::kFloat;
    }

    const Tensor& tensor() const { return wide_; }

    void round() const {
        if (memory_) narrow(memory_.get(), given_.data, size_);
    }

private:
    Tensor wide_, given_;
    int64_t size_ = 0;
    std::unique_ptr<float[]> memory_;
};

// Weights of which each channel of the result has its factor: kept as products, so that no call multiplies its result.
class ScaledWeights : public WeightMemory {
public:
    ScaledWeights(WeightMemory& kept, const Tensor& weights, const Tensor& factors) : kept_(kept), weights_(weights), factors_(factors) {}

    bool has_factors() const override { return true; }

    void* prepared(const Preparation& wanted) override {
        Preparation scaled = wanted;
        scaled.factors = factors_.data;
        scaled.factors_bytes = elements_of(factors_) * sizeof(float);
        const auto fill = [&](void* place, const void*) { wanted.fill(place, products().get()); };
        scaled.fill = fill;
        return kept_.prepared(scaled);
    }

private:
    // In the same layout.
    std::unique_ptr<float[]> products() const {
        const auto& dims = weights_.dims;
        const auto& strides = weights_.strides;
        std::unique_ptr<float[]> found(new float[span_of(weights_)]());
        const auto* given = static_cast<const float*>(weights_.data);
        const auto* factors = static_cast<const float*>(factors_.data);
        const int64_t each = elements_of(weights_) / dims[0];
#pragma omp parallel for schedule(static)
        for (int64_t channel = 0; channel < dims[0]; ++channel)
            for (int64_t i = 0; i < each; ++i) {
                int64_t place = channel * strides[0], rest = i;
                for (size_t d = dims.size(); d-- > 1; rest /= dims[d]) place += rest % dims[d] * strides[d];
                found[place] = given[place] * factors[channel];
            }
        return found;
    }

    WeightMemory& kept_;
    const Tensor &weights_, &factors_;
};

// bias * scale + shift, where there are any: what scaled weights leave of these.
Tensor folded_shift(const Tensor& bias, const Epilogue& epilogue, int64_t channels) {
    const auto* of_bias = static_cast<const float*>(bias.data);
    const auto* scale = static_cast<const float*>(epilogue.scale.data);
    const auto* shift = static_cast<const float*>(epilogue.shift.data);
    if (!of_bias && !shift) return kNone;
    auto* found = static_cast<float*>(scratch(Purpose::kShift, channels * sizeof(float)));
    for (int64_t i = 0; i < channels; ++i) found[i] = (of_bias ? of_bias[i] * scale[i] : 0) + (shift ? shift[i] : 0);
    return {found, {channels}, {1}};
}

// Weights of float32 that are multiplied as bfloat16, where nobody prepares them.
class Rounded {
public:
    Rounded(const Tensor& w, const Tensor& factor) : rounded_(w) {
        if (w.type == factor.type || factor.type != Element::kBfloat16) return;
        const int64_t size = span_of(w);
        memory_.reset(new uint16_t[size]);
        narrow(static_cast<const float*>(w.data), memory_.get(), size);
        rounded_.data = memory_.get();
        rounded_.type = factor.type;
    }

    const Tensor& tensor() const { return rounded_; }

private:
    Tensor rounded_;
    std::unique_ptr<uint16_t[]> memory_;
};

bool lacks_units(std::initializer_list<const Tensor*> tensors) {
    if (has_bfloat16_units()) return false;
    return std::any_of(tensors.begin(), tensors.end(), [](const Tensor* x) { return x->data && x->type != Element::kFloat; });
}

}  // namespace

void onednn_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y, const Epilogue& epilogue,
                        const Window& window, int64_t groups, Layout layout, WeightMemory* kept) {
    if (is_empty(y)) return;
    guarded("Convolution", [&] {
        if (kept && epilogue.scale.data) {
            ScaledWeights scaled(*kept, w, epilogue.scale);
            Epilogue rest = epilogue;
            rest.scale = rest.shift = kNone;
            return onednn_convolution(x, w, folded_shift(bias, epilogue, w.dims[0]), y, rest, window, groups, layout, &scaled);
        }
        if (lacks_units({&x, &w, &bias, &epilogue.residual, &y})) {
            const Rounded weights(w, x);
            const Widened a(x), b(weights.tensor()), c(bias), d(epilogue.residual), result(y);
            const Epilogue wide{epilogue.scale, epilogue.shift, d.tensor(), epilogue.relu, epilogue.slope, epilogue.ceiling};
            onednn_convolution(a.tensor(), b.tensor(), c.tensor(), result.tensor(), wide, window, groups, layout);
            return result.round();
        }
        const Entry& entry = cache().get(key_of(kForward, x, w, bias, y, epilogue, window, groups, layout), [&] {
            return make_forward(describe_problem(x, w, bias, y, epilogue, window, groups, layout));
        });
        float slope = epilogue.slope;
        std::vector<void*> data{x.data, w.data}, operands;
        if (bias.data) data.push_back(bias.data);
        for (const auto* x : {&epilogue.scale, &epilogue.shift})
            if (x->data) operands.push_back(x->data);
        const Tensor& residual = epilogue.residual;
        if (residual.data && !entry.accumulates) operands.push_back(residual.data == y.data ? moved(residual) : residual.data);
        if (!entry.after) data.insert(data.end(), operands.begin(), operands.end());
        if (entry.clamps) data.push_back(&slope);
        data.push_back(y.data);
        entry.run(data, kept);
        auto operand = operands.begin();
        for (const Entry* pass = entry.after.get(); pass; pass = pass->after.get()) pass->run({y.data, *operand++, y.data});
        if (epilogue.relu && !entry.clamps) clamp(y, slope, epilogue.ceiling);
    });
}

void onednn_convolution_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window& window, int64_t groups,
                                      Layout layout, WeightMemory* kept) {
    if (is_empty(dy) || is_empty(dx)) return zero(dx);
    guarded("ConvolutionBackwardData", [&] {
        if (lacks_units({&dy, &w, &dx})) {
            const Rounded weights(w, dy);
            const Widened a(dy), b(weights.tensor()), result(dx);
            onednn_convolution_backward_data(a.tensor(), b.tensor(), result.tensor(), window, groups, layout);
            return result.round();
        }
        const Entry& entry = cache().get(key_of(kBackwardData, dx, w, kNone, dy, kNothing, window, groups, layout), [&] {
            return make_backward_data(describe_problem(dx, w, kNone, dy, kNothing, window, groups, layout));
        });
        entry.run({dy.data, w.data, dx.data}, kept);
    });
}

void onednn_convolution_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Window& window,
                                         int64_t groups, Layout layout) {
    if (is_empty(dy) || is_empty(dw)) return zero(dw);
    guarded("ConvolutionBackwardWeights", [&] {
        if (lacks_units({&x, &dy, &dw})) {
            const Widened a(x), b(dy), weights(dw);
            onednn_convolution_backward_weights(a.tensor(), b.tensor(), weights.tensor(), window, groups, layout);
            return weights.round();
        }
        const Entry& entry = cache().get(key_of(kBackwardWeights, x, dw, kNone, dy, kNothing, window, groups, layout), [&] {
            return make_backward_weights(describe_problem(x, dw, kNone, dy, kNothing, window, groups, layout));
        });
        const bool has_own_kernel = entry.implementation.find("dw") != std::string::npos;  // for depthwise convolutions
        if (!has_own_kernel && depthwise_weight_gradient(x, dy, dw, window, groups)) return;
        entry.run({x.data, dy.data, dw.data});
    });
}

}  // namespace daceopt
