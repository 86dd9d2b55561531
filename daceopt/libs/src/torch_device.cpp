// Library nodes by torch's operators. They are found by torch's dispatcher, so this compiles against any build of torch
// and runs where that build knows the device.
#include "daceopt/torch_device.h"

#include "daceopt/torch_tensors.h"

#include <ATen/Context.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/_conv_depthwise2d.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/cudnn_convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <optional>

// Where kernels of the program report, if there is one around this (codegen/include/daceopt/device.h).
extern "C" __attribute__((weak)) int32_t* daceopt_reports();

namespace daceopt {
namespace {

// [batch..., rows, columns] as three dimensions; all batches of an operand that has fewer.
Tensor batched(const Tensor& t, at::IntArrayRef batch) {
    std::vector<int64_t> full(batch.begin(), batch.end());
    full.insert(full.end(), t.sizes().end() - 2, t.sizes().end());
    return t.expand(full).reshape({c10::multiply_integers(batch), t.size(-2), t.size(-1)});
}

bool is_matrix(const Tensor& t) { return t.numel() == t.size(-2) * t.size(-1); }

bool is_view(const Tensor& t, at::IntArrayRef shape) {
    return t.numel() == c10::multiply_integers(shape) && at::detail::computeStride(t.sizes(), t.strides(), shape);
}

// What is added to all of y, which is seen in this shape; numbers of columns stay a row, which cuBLAS adds by itself.
std::optional<Tensor> added_to(const Tensor& y, const std::optional<Tensor>& t, at::IntArrayRef shape) {
    if (!t) return std::nullopt;
    if (shape.size() == 2 && t->dim() && t->numel() == t->size(-1) && t->numel() == y.size(-1)) return t->reshape({y.size(-1)});
    return t->expand(y.sizes()).reshape(shape);
}

// Does torch multiply narrow factors into float32? On devices, but for float16 where the user wants sums in float16.
bool multiplies_into_float(const Tensor& factor) {
    return factor.is_cuda() && !(factor.scalar_type() == at::kHalf && at::globalContext().allowFP16AccumulationCuBLAS());
}

// y = alpha * a @ b + added, in y's type; factors of another one are narrow, and their products are summed in y's.
void multiply(Tensor& y, const Tensor& a, const Tensor& b, const std::optional<Tensor>& added, double alpha, bool relu) {
    const bool flat = y.dim() == 2, same = a.scalar_type() == y.scalar_type();
    if (!same && !multiplies_into_float(a)) return multiply(y, a.to(y.scalar_type()), b.to(y.scalar_type()), added, alpha, relu);
    const Tensor& start = added ? *added : y;
    const double beta = added ? 1 : 0;
    if (flat && same && relu && added && a.size(1) > 0) {  // of no products at all torch returns what is added as it is
        at::_addmm_activation_out(y, start, a, b, beta, alpha, /*use_gelu=*/false);
        return;
    }
    if (flat && same) {
        if (!added && alpha == 1) at::mm_out(y, a, b);
        else at::addmm_out(y, start, a, b, beta, alpha);
    } else if (flat) {
        if (!added && alpha == 1) at::mm_out(y, a, b, y.scalar_type());
        else at::addmm_out(y, start, a, b, y.scalar_type(), beta, alpha);
    } else if (same) {
        if (!added && alpha == 1) at::bmm_out(y, a, b);
        else at::baddbmm_out(y, start, a, b, beta, alpha);
    } else {
        if (!added && alpha == 1) at::bmm_out(y, a, b, y.scalar_type());
        else at::baddbmm_out(y, start, a, b, y.scalar_type(), beta, alpha);
    }
    if (relu) y.relu_();
}

// The zeros that the window reads; torch's own padding is the same on both sides.
Tensor padded(const Tensor& x, const DeviceWindow& window) {
    std::vector<int64_t> amounts;
    bool any = false;
    for (size_t k = window.begin.size(); k-- > 0;) {
        amounts.insert(amounts.end(), {window.begin[k], window.end[k]});
        any |= window.begin[k] || window.end[k];
    }
    return any ? at::constant_pad_nd(x, amounts, 0) : x;
}

bool is_even(const DeviceWindow& window) { return window.begin == window.end; }

std::vector<int64_t> padding(const DeviceWindow& window) {
    return is_even(window) ? window.begin : std::vector<int64_t>(window.begin.size(), 0);
}

std::vector<int64_t> no_output_padding(const DeviceWindow& window) { return std::vector<int64_t>(window.begin.size(), 0); }

}  // namespace

void device_product(const DeviceProduct& product) {
    const Plain plain;
    const Where where = product.where;
    Tensor y = tensor(where, product.y), a = tensor(where, product.a), b = tensor(where, product.b);
    if (y.numel() == 0) return;
    std::optional<Tensor> bias = optional(where, product.bias), c = optional(where, product.c);
    const std::vector<int64_t> batch(y.sizes().begin(), y.sizes().end() - 2);
    const auto fits = [&](const std::optional<Tensor>& t) { return !t || t->scalar_type() == y.scalar_type(); };
    // what is added to a narrow result is added before it is rounded
    const bool narrow = y.scalar_type() == at::kHalf || y.scalar_type() == at::kBFloat16;
    const bool wide = narrow && (!fits(bias) || !fits(c) || (bias && c));
    Tensor sum = wide ? at::empty_like(y, y.options().dtype(at::kFloat)) : y;
    for (std::optional<Tensor>* t : {&bias, &c})
        if (*t && (*t)->scalar_type() != sum.scalar_type()) *t = (*t)->to(sum.scalar_type());
    const std::optional<Tensor> first = bias ? bias : c;
    const bool both = bias && c;
    const std::vector<int64_t> flat{c10::multiply_integers(batch) * sum.size(-2), sum.size(-1)}, left{flat[0], a.size(-1)};
    if (is_matrix(b) && is_view(a, left) && is_view(sum, flat)) {  // all batches as rows of one product
        Tensor rows = sum.view(flat);
        const Tensor right = b.view({b.size(-2), b.size(-1)});
        multiply(rows, a.view(left), right, added_to(sum, first, flat), product.alpha, product.relu && !both);
    } else {
        const std::vector<int64_t> rows{c10::multiply_integers(batch), sum.size(-2), sum.size(-1)};
        Tensor three = sum.is_contiguous() ? sum.view(rows) : at::empty(rows, sum.options());
        const std::optional<Tensor> added = added_to(sum, first, rows);
        multiply(three, batched(a, batch), batched(b, batch), added, product.alpha, product.relu && !both);
        if (!sum.is_contiguous()) sum.copy_(three.view(sum.sizes()));
    }
    if (both) {
        sum.add_(*c);
        if (product.relu) sum.relu_();
    }
    if (wide) y.copy_(sum);
}

namespace {

// The same with zeros on both sides alike where no window reaches those that are added, or some are left unread: a
// window that steps over pixels often ends before the last of them, and torch's own padding is the same on both sides.
DeviceWindow evened(DeviceWindow window, const Tensor& x, const Tensor& w, const Tensor& y) {
    for (size_t k = 0; k < window.begin.size(); ++k) {
        const int64_t axis = int64_t(k) + 2, covered = window.dilations[k] * (w.size(axis) - 1) + 1;
        const int64_t steps = (x.size(axis) + 2 * window.begin[k] - covered) / window.strides[k] + 1;
        if (window.end[k] < window.begin[k] && steps == y.size(axis)) window.end[k] = window.begin[k];
    }
    return window;
}

// A line of pixels is an image of one row.
Tensor planes(const Tensor& t) { return t.dim() == 3 ? t.unsqueeze(2) : t; }

DeviceWindow planes(const DeviceWindow& window) {
    if (window.begin.size() != 1) return window;
    return {{1, window.strides[0]}, {1, window.dilations[0]}, {0, window.begin[0]}, {0, window.end[0]}, window.group};
}

// result = conv(x, w), written where it belongs by the kernel that torch would take, if that one can; rounded to the
// type of the factors in any case.
void convolved(Tensor& result, const Tensor& x, const Tensor& w, const DeviceWindow& window) {
    const std::vector<int64_t> pads = padding(window), none = no_output_padding(window);
    const auto symbolic = [](const std::vector<int64_t>& v) { return c10::fromIntArrayRefSlow(v); };
    if (x.is_cuda() && x.scalar_type() == result.scalar_type()) {
        const auto kind = at::native::select_conv_backend(x, w, std::nullopt, symbolic(window.strides), symbolic(pads),
                                                          symbolic(window.dilations), false, symbolic(none), window.group, std::nullopt);
        if (kind == at::native::ConvBackend::CudaDepthwise2d && x.is_contiguous() && w.is_contiguous() && result.is_contiguous()) {
            at::_conv_depthwise2d_out(result, x, w, w.sizes().slice(2), std::nullopt, window.strides, pads, window.dilations);
            return;
        }
        const auto format = at::native::_determine_backend_memory_format(x, w, kind);
        if (kind == at::native::ConvBackend::Cudnn && x.dim() == 4 && result.is_contiguous(format)) {
            const at::Context& torch = at::globalContext();
            at::cudnn_convolution_out(result, x.contiguous(format), w.contiguous(format), pads, window.strides, window.dilations,
                                      window.group, torch.benchmarkCuDNN(),
                                      torch.deterministicCuDNN() || torch.deterministicAlgorithms(),
                                      torch.allowTF32CuDNN(at::Float32Op::CONV));
            return;
        }
    }
    result.copy_(at::convolution(x, w, std::nullopt, window.strides, pads, window.dilations, false, none, window.group));
}

// The window by which dy is convolved with the weights turned around, which is the gradient of the image: where the
// window steps over every pixel and takes no more zeros than its kernel covers.
std::optional<DeviceWindow> turned(const DeviceWindow& window, const Tensor& w) {
    DeviceWindow found = window;
    bool fits = window.group == 1 && is_even(window);
    for (size_t k = 0; k < window.begin.size(); ++k) {
        found.begin[k] = found.end[k] = window.dilations[k] * (w.size(int64_t(k) + 2) - 1) - window.begin[k];
        fits &= window.strides[k] == 1 && found.begin[k] >= 0;
    }
    return fits ? std::make_optional(found) : std::nullopt;
}

Tensor turned_around(const Tensor& w) {
    std::vector<int64_t> axes;
    for (int64_t k = 2; k < w.dim(); ++k)
        if (w.size(k) > 1) axes.push_back(k);
    return (axes.empty() ? w : w.flip(axes)).transpose(0, 1);
}

}  // namespace

void device_convolution(Where where, const DeviceWindow& given, bool relu, const DeviceArray& x, const DeviceArray& w,
                        const DeviceArray& b, const DeviceArray& z, const DeviceArray& y) {
    const Plain plain;
    const Tensor image = planes(tensor(where, x)), weights = planes(tensor(where, w));
    Tensor result = planes(tensor(where, y));
    const DeviceWindow window = evened(planes(given), image, weights, result);
    const Tensor even = is_even(window) ? image : padded(image, window);
    if (!b.data && !z.data && !relu) return convolved(result, even, weights, window);
    std::optional<Tensor> bias = optional(where, b);
    if (bias) bias = bias->to(image.scalar_type());
    Tensor made = at::convolution(even, weights, bias, window.strides, padding(window), window.dilations, false,
                                  no_output_padding(window), window.group);
    if (z.data) made.add_(planes(tensor(where, z)));
    if (relu) made.relu_();
    result.copy_(made);
}

void device_convolution_data(Where where, const DeviceWindow& given, const DeviceArray& dy, const DeviceArray& w,
                             const DeviceArray& dx) {
    const Plain plain;
    Tensor result = planes(tensor(where, dx));
    const Tensor gradient = planes(tensor(where, dy)), weights = planes(tensor(where, w));
    const DeviceWindow window = evened(planes(given), result, weights, gradient);
    if (const auto around = turned(window, weights); around && gradient.numel())
        return convolved(result, gradient, turned_around(weights), *around);
    const Tensor like = result.to(gradient.scalar_type());  // itself, unless wanted wide
    const Tensor image = is_even(window) ? like : padded(like, window);
    Tensor found = std::get<0>(at::convolution_backward(gradient, image, weights, std::nullopt, window.strides, padding(window),
                                                        window.dilations, false, no_output_padding(window), window.group,
                                                        {true, false, false}));
    for (size_t k = 0; !is_even(window) && k < window.begin.size(); ++k)
        found = found.narrow(int64_t(k) + 2, window.begin[k], result.size(int64_t(k) + 2));
    result.copy_(found);
}

void device_convolution_weights(Where where, const DeviceWindow& given, const DeviceArray& x, const DeviceArray& dy,
                                const DeviceArray& dw) {
    const Plain plain;
    const Tensor image = planes(tensor(where, x)), gradient = planes(tensor(where, dy));
    Tensor result = planes(tensor(where, dw));
    const DeviceWindow window = evened(planes(given), image, result, gradient);
    const Tensor even = is_even(window) ? image : padded(image, window);
    const Tensor like = result.to(image.scalar_type());  // itself, unless a narrow gradient is wanted wide
    result.copy_(std::get<1>(at::convolution_backward(gradient, even, like, std::nullopt, window.strides,
                                                      padding(window), window.dilations, false, no_output_padding(window),
                                                      window.group, {false, true, false})));
}

void device_index_add(Where where, const DeviceArray& index, const DeviceArray& dy, const DeviceArray& dw, bool sure) {
    const Plain plain;
    Tensor result = tensor(where, dw), given = tensor(where, index).to(at::kLong);
    const int64_t rows = result.size(0);
    if (result.numel() == 0 || given.numel() == 0) {
        result.zero_();
        return;
    }
    if (!sure && daceopt_reports) {
        const DeviceArray reports{daceopt_reports(), Number::kInt32, {}, {}};
        tensor(where, reports).bitwise_or_(given.ge(rows).logical_or_(given.lt(-rows)).any().to(at::kInt));
    }
    // nobody waits for that: until it is seen, nothing is written beside the array
    const Tensor row = at::remainder(given, rows).flatten();
    // in the order in which rows are done, unless torch has been told to be deterministic: sorting them costs many kernels
    const int64_t width = result.numel() / rows;
    Tensor sums = result.is_contiguous() ? result.zero_() : at::zeros(result.sizes(), result.options());
    sums.view({rows, width}).index_add_(0, row, tensor(where, dy).reshape({row.numel(), width}));
    if (!result.is_contiguous()) result.copy_(sums);
}

}  // namespace daceopt
