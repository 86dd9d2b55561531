// Attention by the kernel that torch itself would take: flash, cuDNN's, the memory-efficient one, or plain products.
//
// All of them leave the natural logarithm of each row's sum of exponentials, so what is stored has one form, and which
// kernel a backward takes does not depend on the forward's.
#include "daceopt/torch_attention.h"

#include "daceopt/torch_tensors.h"

#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <limits>

namespace daceopt {
namespace {

using Kind = at::SDPBackend;
using Gradients = std::array<Tensor, 3>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the kernels take: rows without gaps, each of which starts at a multiple of 16 bytes; else a copy.
Tensor aligned(const Tensor& t) {
    bool fits = t.stride(-1) == 1 && reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0;
    for (int64_t k = 0; k + 1 < t.dim(); ++k)
        fits &= t.size(k) == 1 || (t.stride(k) > 0 && t.stride(k) * t.element_size() % 16 == 0);
    return fits ? t : t.clone(at::MemoryFormat::Contiguous);
}

// What is added to the scores, with as many dimensions as they have.
std::optional<Tensor> added(const std::optional<Tensor>& mask, at::ScalarType type) {
    if (!mask) return std::nullopt;
    Tensor found = *mask;
    if (found.scalar_type() == at::kBool)
        found = at::zeros(found.sizes(), found.options().dtype(type)).masked_fill_(found.logical_not(), -kInfinity);
    while (found.dim() < 4) found = found.unsqueeze(0);
    return found.to(type);
}

struct Operands {
    bool on_host, causal, differentiated;
    double scale;
    Tensor q, k, v;
    std::optional<Tensor> mask;
    int64_t group;  // heads of queries that share one of keys and values
    Kind kind;

    Operands(const DeviceAttention& a, bool differentiated);
    bool is(Kind other) const { return kind == other; }
    std::vector<int64_t> scores() const { return {q.size(0), q.size(1), q.size(2), k.size(2)}; }
    Tensor bias() const;

private:
    Kind chosen() const;
};

Operands::Operands(const DeviceAttention& a, bool differentiated)
    : on_host(a.where == Where::kHost), causal(a.causal), differentiated(differentiated), scale(a.scale),
      q(aligned(tensor(a.where, a.q))), k(aligned(tensor(a.where, a.k))), v(aligned(tensor(a.where, a.v))),
      mask(added(optional(a.where, a.mask), q.scalar_type())), group(q.size(1) / k.size(1)), kind(chosen()) {
    if (group == 1 || ((is(Kind::flash_attention) || is(Kind::cudnn_attention)) && !on_host)) return;
    for (Tensor* t : {&k, &v}) *t = t->repeat_interleave(group, 1);
    kind = chosen();
}

// What torch would take, but for cuDNN's kernel with masks, whose forms are young, and in training: its gradients by
// queries and keys in bfloat16 were ten times as far off as those of the others. They take these operands, too.
Kind Operands::chosen() const {
    std::optional<Tensor> full;
    if (mask) full = mask->expand(scores());
    Tensor probe = q.alias();  // of which gradients are wanted: not every kernel has them for every size
    probe.set_requires_grad(differentiated);
    const bool shared = k.size(1) != q.size(1);
    const Kind found = Kind(at::_fused_sdp_choice(probe, k, v, full, 0.0, causal, scale, shared));
    if (found != Kind::cudnn_attention || !(mask || differentiated)) return found;
    // flash counts what a causal mask hides from the last key on, the others from the first
    const bool is_flash = !mask && !(causal && q.size(2) != k.size(2)) && q.size(3) == v.size(3) && q.size(3) <= 256;
    return is_flash ? Kind::flash_attention : Kind::efficient_attention;
}

// The mask as the memory-efficient kernel reads it: rows start at multiples of 16 elements.
Tensor Operands::bias() const {
    if (!mask) return {};
    Tensor found = *mask;
    const int64_t keys = k.size(2), rest = keys % 16;
    if (found.size(3) != keys) found = found.expand({found.size(0), found.size(1), found.size(2), keys});
    bool fits = found.stride(3) == 1 && reinterpret_cast<uintptr_t>(found.data_ptr()) % 16 == 0;
    for (int64_t d = 0; d < 3; ++d) fits &= found.size(d) == 1 || found.stride(d) % 16 == 0;
    if (rest) found = at::constant_pad_nd(found, {0, 16 - rest}, 0).narrow(3, 0, keys);
    else if (!fits) found = found.clone(at::MemoryFormat::Contiguous);
    return found.expand(scores());
}

struct Result {
    Tensor y, lse;  // lse: [batch, heads, rows]; by products, a row without a key has 0
};

at::ScalarType computed(const Tensor& t) { return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

Tensor masked_scores(const Operands& o) {
    const auto type = computed(o.q);
    Tensor s = at::matmul(o.q.to(type), o.k.to(type).transpose(2, 3)).mul_(o.scale);
    if (o.mask) s.add_(*o.mask);
    if (!o.causal) return s;
    const Tensor seen = at::ones({o.q.size(2), o.k.size(2)}, o.q.options().dtype(at::kBool)).tril_();
    return s.masked_fill_(seen.logical_not(), -kInfinity);
}

Result by_products(const Operands& o) {
    const Tensor s = masked_scores(o);
    Tensor lse = at::logsumexp(s, {-1}, false);
    lse = lse.masked_fill(lse == -kInfinity, 0);
    return {at::matmul((s - lse.unsqueeze(-1)).exp_(), o.v.to(s.scalar_type())), lse};
}

Gradients by_products(const Operands& o, const Tensor& y, const Tensor& lse, const Tensor& dy) {
    const Tensor s = masked_scores(o);
    const auto type = s.scalar_type();
    const Tensor g = dy.to(type), weights = (s - lse.masked_fill(lse.isinf(), 0).unsqueeze(-1)).exp_();
    const Tensor dot = (g * y.to(type)).sum({-1}, /*keepdim=*/true);
    const Tensor ds = (at::matmul(g, o.v.to(type).transpose(2, 3)) - dot).mul_(weights).mul_(o.scale);
    return {at::matmul(ds, o.k.to(type)), at::matmul(ds.transpose(2, 3), o.q.to(type)), at::matmul(weights.transpose(2, 3), g)};
}

Result forward(const Operands& o) {
    if (o.is(Kind::flash_attention) && o.on_host) {
        const auto found = at::_scaled_dot_product_flash_attention_for_cpu(o.q, o.k, o.v, 0.0, o.causal, o.mask, o.scale);
        return {std::get<0>(found), std::get<1>(found)};
    }
    if (o.is(Kind::flash_attention)) {
        const auto found = at::_scaled_dot_product_flash_attention(o.q, o.k, o.v, 0.0, o.causal, false, o.scale);
        return {std::get<0>(found), std::get<1>(found)};
    }
    if (o.is(Kind::efficient_attention)) {
        std::optional<Tensor> bias;
        if (o.mask) bias = o.bias();
        const auto found = at::_scaled_dot_product_efficient_attention(o.q, o.k, o.v, bias, o.differentiated, 0.0, o.causal,
                                                                       o.scale);
        return {std::get<0>(found), std::get<1>(found)};
    }
    if (o.is(Kind::cudnn_attention)) {
        const auto found = at::_scaled_dot_product_cudnn_attention(o.q, o.k, o.v, std::nullopt, o.differentiated, 0.0, o.causal,
                                                                   false, o.scale);
        return {std::get<0>(found), std::get<1>(found)};  // whose statistics nobody reads
    }
    return by_products(o);
}

// `rows`: the statistics of the rows that there are; `padded`: as they are stored.
Gradients backward(const Operands& o, const Tensor& y, const Tensor& padded, const Tensor& dy) {
    const Tensor rows = padded.narrow(2, 0, o.q.size(2)).contiguous();
    const int64_t queries = o.q.size(2), keys = o.k.size(2);
    const Tensor none;
    // nothing is dropped, so no kernel reads numbers of a generator
    const auto number = [&](at::ScalarType type, at::IntArrayRef shape) { return at::empty(shape, o.q.options().dtype(type)); };
    std::tuple<Tensor, Tensor, Tensor> found;
    if (o.is(Kind::flash_attention) && o.on_host) {
        found = at::_scaled_dot_product_flash_attention_for_cpu_backward(dy, o.q, o.k, o.v, y, rows, 0.0, o.causal, o.mask,
                                                                         o.scale);
    } else if (o.is(Kind::flash_attention)) {
        found = at::_scaled_dot_product_flash_attention_backward(dy, o.q, o.k, o.v, y, rows, none, none, queries, keys, 0.0,
                                                                 o.causal, number(at::kUInt64, {2}), number(at::kUInt64, {}),
                                                                 o.scale);
    } else if (o.is(Kind::efficient_attention)) {
        const auto four = at::_scaled_dot_product_efficient_attention_backward(
            dy, o.q, o.k, o.v, o.bias(), y, padded, number(at::kLong, {}), number(at::kLong, {}), 0.0, {true, true, true, false},
            o.causal, o.scale);
        found = {std::get<0>(four), std::get<1>(four), std::get<2>(four)};
    } else {
        return by_products(o, y, rows, dy);
    }
    return {std::get<0>(found), std::get<1>(found), std::get<2>(found)};
}

// The sum over heads of queries that share one, where the kernel has a gradient for each.
Tensor of_shared(const Tensor& gradient, const Tensor& wanted) {
    if (gradient.size(1) == wanted.size(1)) return gradient;
    const int64_t heads = wanted.size(1), group = gradient.size(1) / heads;
    return gradient.reshape({wanted.size(0), heads, group, wanted.size(2), wanted.size(3)}).sum({2}, false, computed(gradient));
}

}  // namespace

void device_attention(const DeviceAttention& attention, const DeviceArray& y, const DeviceArray& lse) {
    const Plain plain;
    Tensor result = tensor(attention.where, y);
    const std::optional<Tensor> stored = optional(attention.where, lse);
    const Operands o(attention, stored.has_value());
    if (result.numel() == 0 || o.k.numel() == 0) {
        result.zero_();
        if (stored) stored->zero_();
        return;
    }
    const Result found = forward(o);
    result.copy_(found.y);
    if (!stored) return;
    const int64_t own = found.lse.size(2), rows = stored->size(2);
    stored->narrow(2, 0, own).copy_(found.lse);
    // rows that are none have no weights in a backward
    if (own < rows) stored->narrow(2, own, rows - own).fill_(kInfinity);
}

void device_attention_backward(const DeviceAttention& attention, const DeviceArray& y, const DeviceArray& lse,
                               const DeviceArray& dy, const DeviceArray& dq, const DeviceArray& dk, const DeviceArray& dv) {
    const Plain plain;
    const Where where = attention.where;
    const Operands o(attention, true);
    const bool empty = o.q.numel() == 0 || o.k.numel() == 0;
    Gradients found;
    if (!empty) found = backward(o, aligned(tensor(where, y)), tensor(where, lse), aligned(tensor(where, dy)));
    const std::array<const DeviceArray*, 3> wanted{&dq, &dk, &dv};
    for (size_t n = 0; n < wanted.size(); ++n) {
        std::optional<Tensor> result = optional(where, *wanted[n]);
        if (result && empty) result->zero_();
        else if (result) result->copy_(of_shared(found[n], *result));
    }
}

}  // namespace daceopt
