// Convolutions by oneDNN. Weights take the layout the kernel prefers; activations too, when their own has no fast kernel.
#include <algorithm>
#include <initializer_list>
#include <optional>

#include "daceopt/onednn_cache.h"

namespace daceopt {
namespace {

using namespace detail;
using dnnl::algorithm;
using dnnl::prop_kind;

enum Pass : int64_t { kForward, kBackwardData, kBackwardWeights };

struct Problem {  // descriptions in the caller's layouts; src and dst also name their gradients
    memory::desc src, weights, bias, dst, residual, added;  // added: the residual in the layout of the result
    memory::dims strides, dilations, pads_begin, pads_end;
    Layout layout;
};

memory::desc describe_weights(const Tensor& w, int64_t groups) {
    memory::dims dims = w.dims, strides = w.strides;
    if (groups > 1) {
        dims[0] /= groups;
        dims.insert(dims.begin(), groups);
        strides.insert(strides.begin(), strides[0] * dims[1]);
    }
    return memory::desc(dims, data_type_of(w.type), strides);
}

memory::desc in_layout_of_result(const Tensor& residual, const Tensor& y) {
    return describe({nullptr, y.dims, y.strides, residual.type, y.is_blocked});
}

Problem describe_problem(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual, const Tensor& y,
                         const Window& window, int64_t groups, Layout layout) {
    Problem p;
    p.layout = layout;
    p.src = describe(x);
    p.weights = describe_weights(w, groups);
    p.dst = describe(y);
    if (bias.data) p.bias = memory::desc(bias.dims, data_type_of(bias.type), memory::format_tag::x);
    if (residual.data) p.residual = describe(residual), p.added = in_layout_of_result(residual, y);
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

dnnl::post_ops operations(const Choice& c) {
    dnnl::post_ops found;
    if (!c.added.is_zero()) found.append_binary(algorithm::binary_add, c.added);
    return found;
}

// What is added in the layout of the kernel's own choice, which is that of its result; kernels take no other there.
memory::desc free_added(const Problem& p) {
    return p.added.is_zero() || p.added.get_data_type() != p.dst.get_data_type() ? p.added : any(p.added);
}

memory::desc added_of(const dnnl::convolution_forward::primitive_desc& pd) {
    algorithm kind;
    memory::desc added;
    pd.get_primitive_attr().get_post_ops().get_params_binary(0, kind, added);
    return added.get_format_kind() == memory::format_kind::any ? pd.dst_desc() : added;
}

dnnl::convolution_forward::primitive_desc forward(const Problem& p, const Choice& c) {
    const auto weights = any(p.weights);
    if (p.bias.is_zero())
        return {engine(), prop_kind::forward_training, algorithm::convolution_direct, c.src, weights, c.dst, p.strides,
                p.dilations, p.pads_begin, p.pads_end, attributes(operations(c))};
    return {engine(), prop_kind::forward_training, algorithm::convolution_direct, c.src, weights, p.bias, c.dst, p.strides,
            p.dilations, p.pads_begin, p.pads_end, attributes(operations(c))};
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
    return {engine(), algorithm::convolution_direct, c.src, any(p.weights), c.dst, p.strides, p.dilations, p.pads_begin,
            p.pads_end, hint(p), attributes()};
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

// y = y + residual
std::shared_ptr<Entry> make_addition(const Problem& p) {
    const dnnl::binary::primitive_desc pd(engine(), algorithm::binary_add, p.dst, p.added, p.dst, attributes());
    auto entry = entry_of(pd, dnnl::binary(pd));
    entry->add(DNNL_ARG_SRC_0, p.dst, p.dst, false);
    entry->add(DNNL_ARG_SRC_1, p.residual, p.added, false);
    entry->add(DNNL_ARG_DST, p.dst, p.dst, true);
    return entry;
}

std::shared_ptr<Entry> make_forward(const Problem& p) {
    const auto pd = fastest(p, prefers_blocked(p), forward);
    if (!p.added.is_zero() && speed_of(pd.impl_info_str()) == Speed::kReference) {
        Problem plain = p;
        plain.residual = plain.added = memory::desc();
        auto entry = make_forward(plain);
        entry->after = make_addition(p);
        return entry;
    }
    auto entry = entry_of(pd, dnnl::convolution_forward(pd));
    entry->add(DNNL_ARG_SRC, p.src, pd.src_desc(), false);
    entry->add(DNNL_ARG_WEIGHTS, p.weights, pd.weights_desc(), false);
    if (!p.bias.is_zero()) entry->add(DNNL_ARG_BIAS, p.bias, p.bias, false);
    if (!p.residual.is_zero()) entry->add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, p.residual, added_of(pd), false);
    entry->add(DNNL_ARG_DST, p.dst, pd.dst_desc(), true);
    return entry;
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

Key key_of(Pass pass, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual, const Tensor& y,
           const Window& window, int64_t groups, Layout layout) {
    Key key{pass, groups, static_cast<int64_t>(layout)};
    for (const auto* tensor : {&x, &w, &bias, &residual, &y}) append(key, *tensor);
    for (const auto* list : {&window.strides, &window.dilations, &window.pads_begin, &window.pads_end}) append(key, *list);
    return key;
}

bool is_empty(const Tensor& x) {
    for (int64_t n : x.dims)
        if (n == 0) return true;
    return false;
}

// The sum over no images.
void zero(const Tensor& x) {
    int64_t count = 1;
    for (int64_t n : x.dims) count *= n;
    if (x.data) std::memset(x.data, 0, count * bytes_of(x.type));
}

Cache& cache() {
    static Cache instance;
    return instance;
}

const Tensor kNone{nullptr, {}, {}};

// A tensor of bfloat16 as floats in the same layout, for CPUs without units that multiply it.
class Widened {
public:
    explicit Widened(const Tensor& given) : wide_(given), given_(given) {
        if (!given.data || given.type == Element::kFloat) return;
        for (size_t d = 0; d < given.dims.size(); ++d) size_ += (given.dims[d] - 1) * given.strides[d];
        memory_.reset(new float[size_]);
        for (int64_t i = 0; i < size_; ++i) memory_[i] = load(given.data, given.type, i);
        wide_.data = memory_.get();
        wide_.type = Element::kFloat;
    }

    const Tensor& tensor() const { return wide_; }

    void round() const {
        for (int64_t i = 0; memory_ && i < size_; ++i) store(given_.data, given_.type, i, memory_[i]);
    }

private:
    Tensor wide_, given_;
    int64_t size_ = 1;
    std::unique_ptr<float[]> memory_;
};

bool lacks_units(std::initializer_list<const Tensor*> tensors) {
    if (has_bfloat16_units()) return false;
    return std::any_of(tensors.begin(), tensors.end(), [](const Tensor* x) { return x->data && x->type != Element::kFloat; });
}

}  // namespace

struct PackedWeights::Copies {
    struct Copy {
        memory::desc layout;
        std::unique_ptr<void, decltype(&std::free)> data;
    };
    std::mutex mutex;
    std::vector<Copy> found;
};

PackedWeights::PackedWeights() : copies_(std::make_unique<Copies>()) {}
PackedWeights::~PackedWeights() = default;

void* PackedWeights::prepared(const void* layout, size_t bytes, const std::function<void(void*)>& fill) {
    const auto& wanted = *static_cast<const memory::desc*>(layout);
    const std::lock_guard<std::mutex> lock(copies_->mutex);
    for (const auto& copy : copies_->found)
        if (copy.layout == wanted) return copy.data.get();
    std::unique_ptr<void, decltype(&std::free)> data(std::aligned_alloc(64, (bytes + 4095) / 4096 * 4096), &std::free);
    if (!data) throw std::bad_alloc();
    fill(data.get());
    copies_->found.push_back({wanted, std::move(data)});
    return copies_->found.back().data.get();
}

void onednn_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual, const Tensor& y,
                        const Window& window, int64_t groups, Layout layout, WeightMemory* kept) {
    if (is_empty(y)) return;
    guarded("Convolution", [&] {
        if (lacks_units({&x, &w, &bias, &residual, &y})) {
            const Widened a(x), b(w), c(bias), d(residual), result(y);
            onednn_convolution(a.tensor(), b.tensor(), c.tensor(), d.tensor(), result.tensor(), window, groups, layout);
            return result.round();
        }
        const Entry& entry = cache().get(key_of(kForward, x, w, bias, residual, y, window, groups, layout), [&] {
            return make_forward(describe_problem(x, w, bias, residual, y, window, groups, layout));
        });
        std::vector<void*> data{x.data, w.data};
        if (bias.data) data.push_back(bias.data);
        if (residual.data && !entry.after) data.push_back(residual.data);
        data.push_back(y.data);
        entry.run(data, kept);
        if (entry.after) entry.after->run({y.data, residual.data, y.data});
    });
}

void onednn_convolution_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window& window, int64_t groups,
                                      Layout layout, WeightMemory* kept) {
    if (is_empty(dy) || is_empty(dx)) return zero(dx);
    guarded("ConvolutionBackwardData", [&] {
        if (lacks_units({&dy, &w, &dx})) {
            const Widened a(dy), b(w), result(dx);
            onednn_convolution_backward_data(a.tensor(), b.tensor(), result.tensor(), window, groups, layout);
            return result.round();
        }
        const Entry& entry = cache().get(key_of(kBackwardData, dx, w, kNone, kNone, dy, window, groups, layout), [&] {
            return make_backward_data(describe_problem(dx, w, kNone, kNone, dy, window, groups, layout));
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
        const Entry& entry = cache().get(key_of(kBackwardWeights, x, dw, kNone, kNone, dy, window, groups, layout), [&] {
            return make_backward_weights(describe_problem(x, dw, kNone, kNone, dy, window, groups, layout));
        });
        entry.run({x.data, dy.data, dw.data});
    });
}

}  // namespace daceopt
