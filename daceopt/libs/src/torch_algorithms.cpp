// Algorithms by torch's operators. None of them makes the host wait.
#include "daceopt/torch_algorithms.h"

#include "daceopt/status.h"
#include "daceopt/torch_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cummin.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/kthvalue.h>
#include <ATen/ops/median.h>
#include <ATen/ops/nanmedian.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

// Where kernels of the program report, if there is one around this (codegen/include/daceopt/device.h).
extern "C" __attribute__((weak)) int32_t* daceopt_reports();

namespace daceopt {
namespace {

// As (elements before, at and after an axis), which are the first parameters: of an extent of its own at the axis.
Tensor around(Where where, const DeviceArray& array, const Parameters& parameters, int64_t extent) {
    return tensor(where, array).view({parameters[0], extent, parameters[2]});
}

Tensor around(Where where, const DeviceArray& array, const Parameters& parameters) {
    return around(where, array, parameters, parameters[1]);
}

// Kernels of a program report into the same number (daceopt/ir/scalar/checks.py: INDEX is 1).
void report(Where where, const Tensor& failed) {
    if (!daceopt_reports) return;
    const DeviceArray reports{daceopt_reports(), Number::kInt32, {}, {}};
    tensor(where, reports).bitwise_or_(failed.any().to(at::kInt));
}

// Positions in [0, extent): what is not there is reported, and stands for some other, since nobody waits for the report.
Tensor inside(Where where, const Tensor& positions, int64_t extent) {
    report(where, positions.lt(0).logical_or_(positions.ge(extent)));
    return at::remainder(positions, extent);
}

}  // namespace

void device_bitcast(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters&) {
    const Tensor x = tensor(where, in[0]);
    Tensor y = tensor(where, out[0]);
    y.copy_(x.view(y.scalar_type()));
}

void device_cumulate(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters) {
    const Plain plain;
    const bool exclusive = parameters[3], reverse = parameters[4], product = parameters[5];
    Tensor x = around(where, in[0], parameters), y = around(where, out[0], parameters);
    if (y.numel() == 0) return;
    if (reverse) x = x.flip(1);
    Tensor running = reverse ? at::empty(y.sizes(), y.options()) : y;
    if (exclusive) {
        running.narrow(1, 0, 1).fill_(product ? 1 : 0);
        running = running.narrow(1, 1, parameters[1] - 1);
        x = x.narrow(1, 0, parameters[1] - 1);
    }
    if (running.numel()) {
        if (product) at::cumprod_out(running, x, 1, y.scalar_type());
        else at::cumsum_out(running, x, 1, y.scalar_type());
    }
    if (!reverse) return;
    y.copy_((exclusive ? at::cat({at::full_like(y.narrow(1, 0, 1), product ? 1 : 0), running}, 1) : running).flip(1));
}

namespace {

// A factor of 0 makes a product 0, whatever the other one is.
Tensor times(const Tensor& a, const Tensor& b) {
    return at::where(a.eq(0).logical_or_(b.eq(0)), at::zeros_like(a), a * b);
}

// y[k] = factor[k] * y[k + 1] + term[k] along axis 1, with 0 behind the end: spans of 1, 2, 4, ... elements at once.
Tensor recurrence(Tensor factor, Tensor term) {
    const int64_t extent = term.size(1);
    for (int64_t span = 1; span < extent; span *= 2) {
        const int64_t rest = extent - span;
        const Tensor near = factor.narrow(1, 0, rest);
        const Tensor sums = term.narrow(1, 0, rest) + times(near, term.narrow(1, span, rest));
        const Tensor products = times(near, factor.narrow(1, span, rest));
        term = at::cat({sums, term.narrow(1, rest, span)}, 1);
        factor = at::cat({products, at::zeros_like(factor.narrow(1, rest, span))}, 1);
    }
    return term;
}

// The products of all factors before each.
Tensor products_before(const Tensor& x) {
    const int64_t extent = x.size(1);
    Tensor found = at::cat({at::ones_like(x.narrow(1, 0, 1)), x.narrow(1, 0, extent - 1)}, 1);
    for (int64_t span = 1; span < extent; span *= 2)
        found = at::cat({found.narrow(1, 0, span), times(found.narrow(1, span, extent - span), found.narrow(1, 0, extent - span))}, 1);
    return found;
}

}  // namespace

void device_product_gradient(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters) {
    const Plain plain;
    const bool exclusive = parameters[3], reverse = parameters[4];
    Tensor result = around(where, out[0], parameters);
    if (result.numel() == 0) return;
    const auto wide = [&](const DeviceArray& array) {
        const Tensor found = around(where, array, parameters).to(at::kDouble);
        return reverse ? found.flip(1) : found;
    };
    const Tensor x = wide(in[0]), dy = wide(in[1]);
    // what comes after an element, as a slope by it
    const Tensor all = recurrence(x, exclusive ? dy : times(x, dy));
    const Tensor later = at::cat({all.narrow(1, 1, parameters[1] - 1), at::zeros_like(all.narrow(1, 0, 1))}, 1);
    const Tensor own = exclusive ? later : at::where(x.isfinite(), dy + later, std::numeric_limits<double>::quiet_NaN());
    const Tensor found = times(products_before(x), own);
    result.copy_(reverse ? found.flip(1) : found);
}

void device_ranked_index(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters) {
    const Plain plain;
    const int64_t wanted = parameters[3], rank = parameters[4];
    if (rank < 0 || rank >= parameters[1]) return fail_index("kthvalue", "no element of that rank along the axis");
    const Tensor x = around(where, in[0], parameters);
    Tensor places = around(where, out[0], parameters, 1);
    if (places.numel() == 0) return;
    Tensor values = at::empty(places.sizes(), x.options());
    if (wanted == 0) at::kthvalue_out(values, places, x, rank + 1, 1, true);
    else if (wanted == 1) at::median_out(values, places, x, 1, true);
    else at::nanmedian_out(values, places, x, 1, true);
}

void device_running_extremum(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters) {
    const Plain plain;
    const Tensor x = around(where, in[0], parameters);
    if (x.numel() == 0) return;
    const auto given = [&](const DeviceArray& array, at::ScalarType type) {
        return array.data ? around(where, array, parameters) : at::empty(x.sizes(), x.options().dtype(type));
    };
    Tensor values = given(out[0], x.scalar_type()), places = given(out[1], at::kLong);
    if (parameters[3]) at::cummax_out(values, places, x, 1);
    else at::cummin_out(values, places, x, 1);
}

void device_scatter_rows(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters) {
    const Plain plain;
    const int64_t rows = parameters[0], width = parameters[1], count = parameters[2], reduction = parameters[3];
    // rows that are replaced are so many bytes, of whatever type
    const auto whole = [&](const DeviceArray& array) {
        const Tensor found = tensor(where, array);
        if (reduction) return found;
        const int64_t bytes = found.element_size();
        return found.view(bytes == 1 ? at::kByte : bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong);
    };
    Tensor result = whole(out[0]).view({rows, width});
    result.copy_(whole(in[0]).view({rows, width}));
    if (count == 0) return;
    if (rows == 0) return fail_index("scatter", "an index is out of range");
    const Tensor places = inside(where, tensor(where, in[1]).view({count}), rows), updates = whole(in[2]).view({count, width});
    if (reduction == 0) {
        result.index_copy_(0, places, updates);
        return;
    }
    if (reduction == 1) {
        result.index_add_(0, places, updates);
        return;
    }
    const char* const names[] = {"prod", "amax", "amin"};
    result.scatter_reduce_(0, places.unsqueeze(1).expand({count, width}), updates, names[reduction - 2], true);
}

void device_searchsorted(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters) {
    const Plain plain;
    const int64_t rows = parameters[0], extent = parameters[1], count = parameters[2];
    const bool shared = parameters[3], right = parameters[4];
    // rows that share their boundaries share those of the first
    const auto lines = [&](const DeviceArray& array) {
        const Tensor all = tensor(where, array).view({-1});
        return shared ? all.narrow(0, 0, extent) : all.view({rows, extent});
    };
    Tensor boundaries = lines(in[0]), places = tensor(where, out[0]).view({rows, count});
    if (places.numel() == 0) return;
    if (in[2].data && extent)
        boundaries = boundaries.gather(-1, inside(where, lines(in[2]).to(at::kLong), extent));
    at::searchsorted_out(places, boundaries, tensor(where, in[1]).view({rows, count}), false, right);
}

void device_top_indices(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters) {
    const Plain plain;
    const int64_t extent = parameters[1], k = parameters[3], ties = parameters[5];
    const bool largest = parameters[4];
    if (k < 0 || k > extent) return fail_index("TopK", "k is larger than the extent of the axis");
    const Tensor x = around(where, in[0], parameters);
    Tensor places = around(where, out[0], parameters, k);
    if (places.numel() == 0) return;
    if (ties == 1 || ties == 2) {
        Tensor values = at::empty(places.sizes(), x.options());
        at::topk_out(values, places, x, k, 1, largest, /*sorted=*/ties == 1);
        return;
    }
    const Tensor order = std::get<1>(at::sort(x, /*stable=*/ties == 0, 1, largest));
    places.copy_(order.narrow(1, 0, k));
}

}  // namespace daceopt
