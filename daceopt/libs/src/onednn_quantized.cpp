// Products and convolutions of 8-bit integers by oneDNN, with the scale of each channel applied to the sums in registers.
#include "daceopt/quantized.h"

#include <optional>

#include "daceopt/onednn_cache.h"

namespace daceopt {
namespace {

using namespace detail;
using dnnl::algorithm;
using dnnl::prop_kind;

enum Kind : int64_t { kConvolution, kProduct };

// Without units for 8 bits oneDNN adds pairs of products in 16 bits, which saturate: wrong sums.
void require_units() {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    for (const auto wanted : {dnnl::cpu_isa::avx512_core_vnni, dnnl::cpu_isa::avx2_vnni})
        if ((isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted)) return;
    throw std::runtime_error("oneDNN may not use the units for 8-bit integers (ONEDNN_MAX_CPU_ISA), for which this was compiled");
}

memory::desc vector_of(int64_t count, memory::data_type type) { return memory::desc({count}, type, memory::format_tag::x); }

struct Problem {
    memory::desc src, weights, bias, dst;  // no bias: zero
    int scale_mask;
    const Requantization& r;
    const Window* window = nullptr;
};

dnnl::primitive_attr attributes_of(const Problem& p) {
    dnnl::post_ops operations;
    if (p.r.clamps) operations.append_eltwise(algorithm::eltwise_clip, p.r.low, p.r.high);
    dnnl::primitive_attr attr = attributes(operations);
    attr.set_scales_mask(DNNL_ARG_WEIGHTS, p.scale_mask);
    if (p.r.zero_x) attr.set_zero_points_mask(DNNL_ARG_SRC, 0);
    if (p.r.zero_w) attr.set_zero_points_mask(DNNL_ARG_WEIGHTS, 0);
    if (p.r.zero_y) attr.set_zero_points_mask(DNNL_ARG_DST, 0);
    return attr;
}

dnnl::convolution_forward::primitive_desc convolution(const Problem& p, const memory::desc& src, const memory::desc& dst) {
    const Window& w = *p.window;
    memory::dims dilations;
    for (int64_t d : w.dilations) dilations.push_back(d - 1);
    const auto kind = prop_kind::forward_inference;
    const auto attr = attributes_of(p);
    if (p.bias.is_zero())
        return {engine(), kind, algorithm::convolution_direct, src, any(p.weights), dst, w.strides, dilations, w.pads_begin, w.pads_end, attr};
    return {engine(), kind, algorithm::convolution_direct, src, any(p.weights), p.bias, dst, w.strides, dilations, w.pads_begin, w.pads_end, attr};
}

// The first of the layouts whose kernel is made for the shape: the given one, channels last, what the kernel likes best.
dnnl::convolution_forward::primitive_desc fastest(const Problem& p) {
    const std::pair<memory::desc, memory::desc> choices[] = {
        {p.src, p.dst}, {channels_last(p.src), channels_last(p.dst)}, {any(p.src), any(p.dst)}};
    std::optional<dnnl::convolution_forward::primitive_desc> best;
    for (const auto& [src, dst] : choices) {
        try {
            auto found = convolution(p, src, dst);
            if (!best || speed_of(found.impl_info_str()) < speed_of(best->impl_info_str())) best = found;
        } catch (const dnnl::error&) {  // strides that no kernel takes
            continue;
        }
        if (speed_of(best->impl_info_str()) == Speed::kMade) break;
    }
    return best ? *best : convolution(p, any(p.src), any(p.dst));  // whose error says what is wrong
}

template <typename Descriptor>
std::shared_ptr<Entry> entry_of(const Problem& p, const Descriptor& pd, const dnnl::primitive& primitive) {
    auto entry = std::make_shared<Entry>();
    entry->primitive = primitive;
    entry->scratchpad = pd.scratchpad_desc();
    entry->implementation = pd.impl_info_str();
    entry->add(DNNL_ARG_SRC, p.src, pd.src_desc(), false);
    entry->add(DNNL_ARG_WEIGHTS, p.weights, pd.weights_desc(), false);
    const auto scales = vector_of(p.r.channels, memory::data_type::f32), zero = vector_of(1, memory::data_type::s32);
    entry->add(DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, scales, scales, false);
    if (!p.bias.is_zero()) entry->add(DNNL_ARG_BIAS, p.bias, p.bias, false);
    if (p.r.zero_x) entry->add(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, zero, zero, false);
    if (p.r.zero_w) entry->add(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_WEIGHTS, zero, zero, false);
    if (p.r.zero_y) entry->add(DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_DST, zero, zero, false);
    entry->add(DNNL_ARG_DST, p.dst, pd.dst_desc(), true);
    return entry;
}

std::shared_ptr<Entry> make_convolution(const Problem& p) {
    const auto pd = fastest(p);
    return entry_of(p, pd, dnnl::convolution_forward(pd));
}

// Weights that come anew in each call stay as they are: the kernel copies what it needs of them.
std::shared_ptr<Entry> make_product(const Problem& p, bool is_kept) {
    const auto weights = is_kept ? any(p.weights) : p.weights;
    const auto make = [&] {
        if (p.bias.is_zero()) return dnnl::matmul::primitive_desc(engine(), p.src, weights, p.dst, attributes_of(p));
        return dnnl::matmul::primitive_desc(engine(), p.src, weights, p.bias, p.dst, attributes_of(p));
    };
    const auto pd = make();
    return entry_of(p, pd, dnnl::matmul(pd));
}

// The same numbers less 128: oneDNN takes weights with a sign. They have no gaps.
Tensor with_sign(const Tensor& w) {
    int64_t count = 1;
    for (int64_t n : w.dims) count *= n;
    const auto* from = static_cast<const uint8_t*>(w.data);
    auto* to = static_cast<uint8_t*>(scratch(Purpose::kSigned, count));
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; ++i) to[i] = from[i] ^ 0x80;
    return {to, w.dims, w.strides, Element::kInt8};
}

bool is_empty(const Tensor& x) {
    for (int64_t n : x.dims)
        if (n == 0) return true;
    return false;
}

Key key_of(Kind kind, const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r) {
    Key key{kind, r.shift != nullptr, r.channels, r.zero_x != 0, r.zero_w != 0, r.zero_y != 0, r.clamps};
    if (r.clamps) key.insert(key.end(), {static_cast<int64_t>(r.low), static_cast<int64_t>(r.high)});
    for (const auto* tensor : {&x, &w, &y}) append(key, *tensor);
    return key;
}

Cache& cache() {
    static Cache instance;
    return instance;
}

std::vector<float> rounded(const double* values, int64_t count) {
    return values ? std::vector<float>(values, values + count) : std::vector<float>();
}

void run(const Entry& entry, const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r, WeightMemory* kept) {
    auto scale = rounded(r.scale, r.channels), shift = rounded(r.shift, r.channels);
    int32_t zero_x = r.zero_x, zero_w = r.zero_w, zero_y = r.zero_y;
    std::vector<void*> data{x.data, w.data, scale.data()};
    if (r.shift) data.push_back(shift.data());
    if (zero_x) data.push_back(&zero_x);
    if (zero_w) data.push_back(&zero_w);
    if (zero_y) data.push_back(&zero_y);
    data.push_back(y.data);
    entry.run(data, kept);
}

}  // namespace

void onednn_quantized_convolution(const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r, const Window& window,
                                  int64_t groups, WeightMemory* kept) {
    if (is_empty(y)) return;
    guarded("QuantizedConvolution", [&] {
        Key key = key_of(kConvolution, x, w, y, r);
        key.push_back(groups);
        for (const auto* list : {&window.strides, &window.dilations, &window.pads_begin, &window.pads_end}) append(key, *list);
        const Entry& entry = cache().get(key, [&] {
            require_units();
            Problem p{describe(x), describe_weights(w, groups), {}, describe(y), groups > 1 ? 3 : 1, r, &window};
            if (r.shift) p.bias = vector_of(r.channels, memory::data_type::f32);
            return make_convolution(p);
        });
        run(entry, x, w, y, r, kept);
    });
}

void onednn_quantized_product(const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r, WeightMemory* kept) {
    if (is_empty(y)) return;
    guarded("QuantizedProduct", [&] {
        if (w.type == Element::kUint8) {
            Requantization moved = r;
            moved.zero_w -= 128;
            return onednn_quantized_product(x, with_sign(w), y, moved, kept);
        }
        Key key = key_of(kProduct, x, w, y, r);
        key.push_back(kept != nullptr);
        const Entry& entry = cache().get(key, [&] {
            require_units();
            const auto plain = [](const Tensor& t) { return memory::desc(t.dims, data_type_of(t.type), t.strides); };
            const int rank = static_cast<int>(w.dims.size());
            Problem p{plain(x), plain(w), {}, plain(y), r.channels > 1 ? 1 << (rank - 1) : 0, r};
            memory::dims bias(rank, 1);
            bias.back() = r.channels;
            if (r.shift) p.bias = memory::desc(bias, memory::data_type::f32, memory::dims(rank, 1));
            return make_product(p, kept != nullptr);
        });
        run(entry, x, w, y, r, kept);
    });
}

}  // namespace daceopt
