#include "daceopt/depthwise.h"

#include "daceopt/threads.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

namespace daceopt {
namespace {

using Lanes = float __attribute__((vector_size(kBlock * sizeof(float))));  // neighbouring channels

constexpr int64_t kMostColumns = 8;  // of a window, whose sums stand in registers

// Distances in elements; `block` is that of kBlock channels.
struct Image {
    float* data;
    int64_t image, block, row, column, height, width;
};

bool has_lanes(const Tensor& x) { return x.is_blocked || x.strides[1] == 1; }

Image image_of(const Tensor& x) {
    const int64_t rank = int64_t(x.dims.size()), width = x.dims[rank - 1], height = rank == 4 ? x.dims[2] : 1;
    auto* data = static_cast<float*>(x.data);
    if (x.is_blocked) return {data, x.dims[1] * height * width, height * width * kBlock, width * kBlock, kBlock, height, width};
    return {data, x.strides[0], kBlock, rank == 4 ? x.strides[2] : 0, x.strides[rank - 1], height, width};
}

// A spatial dimension of the window.
struct Axis {
    int64_t size, stride, dilation, pad;

    int64_t place(int64_t o, int64_t k) const { return o * stride - pad + k * dilation; }
};

Axis axis_of(const Tensor& dw, const Window& window, int64_t d) {
    return {dw.dims[d + 2], window.strides[d], window.dilations[d], window.pads_begin[d]};
}

template <bool full>
Lanes load(const float* from, int64_t channels) {
    Lanes found{};
    std::memcpy(&found, from, full ? sizeof found : channels * sizeof(float));
    return found;
}

// One row of places: columns [first, first + columns) of the window get the sums over it added.
struct Row {
    const float *x, *dy;  // of column 0
    int64_t x_column, dy_column, width, places, channels;
    Axis axis;
};

template <bool full, int columns>
void add_row(const Row& r, int64_t first, Lanes* totals) {
    const Axis& a = r.axis;
    const auto begins_inside = [&](int64_t o) { return a.place(o, first) >= 0; };
    const auto ends_inside = [&](int64_t o) { return a.place(o, first + columns - 1) < r.width; };
    int64_t begin = 0, end = r.places;  // of the places of which all columns lie inside of the image
    while (begin < end && !begins_inside(begin)) ++begin;
    while (end > begin && !ends_inside(end - 1)) --end;
    const int64_t step = a.dilation * r.x_column;
    Lanes sums[columns] = {};
    for (int64_t o = begin; o < end; ++o) {
        const Lanes gradient = load<full>(r.dy + o * r.dy_column, r.channels);
        const float* in = r.x + a.place(o, first) * r.x_column;
        for (int k = 0; k < columns; ++k) sums[k] += gradient * load<full>(in + k * step, r.channels);
    }
    for (int64_t o = 0; o < r.places; ++o) {
        if (o == begin) o = end;
        if (o == r.places) break;
        const Lanes gradient = load<full>(r.dy + o * r.dy_column, r.channels);
        for (int k = 0; k < columns; ++k) {
            const int64_t place = a.place(o, first + k);
            if (place >= 0 && place < r.width) sums[k] += gradient * load<full>(r.x + place * r.x_column, r.channels);
        }
    }
    for (int k = 0; k < columns; ++k) totals[first + k] += sums[k];
}

using AddRow = void (*)(const Row&, int64_t, Lanes*);

template <bool full, int... columns>
constexpr std::array<AddRow, sizeof...(columns)> rows_of(std::integer_sequence<int, columns...>) {
    return {add_row<full, columns + 1>...};
}

AddRow row_of(bool full, int64_t columns) {
    constexpr auto kColumns = std::make_integer_sequence<int, kMostColumns>();
    static constexpr auto kFull = rows_of<true>(kColumns), kPart = rows_of<false>(kColumns);
    return (full ? kFull : kPart)[columns - 1];
}

}  // namespace

bool depthwise_weight_gradient(const Tensor& x, const Tensor& dy, const Tensor& dw, const Window& window, int64_t groups) {
    const size_t rank = x.dims.size();
    for (const Tensor* t : {&x, &dy, &dw})
        if (t->type != Element::kFloat) return false;
    if ((rank != 3 && rank != 4) || groups < 2 || groups != x.dims[1] || groups != dy.dims[1]) return false;
    if (!has_lanes(x) || !has_lanes(dy)) return false;

    const Image in = image_of(x), gradient = image_of(dy);
    const Axis across = axis_of(dw, window, int64_t(rank) - 3), down = rank == 4 ? axis_of(dw, window, 0) : Axis{1, 1, 1, 0};
    const int64_t blocks = (groups + kBlock - 1) / kBlock, rows = x.dims[0] * gradient.height, taps = down.size * across.size;
    // several parts of the rows for each block of channels, where there are few of these
    const int64_t parts = std::min(rows, (2 * omp_get_max_threads() + blocks - 1) / blocks);
    std::vector<Lanes> totals(blocks * parts * taps, Lanes{});

#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < blocks * parts; ++task) {
        const int64_t block = task / parts, part = task % parts, channels = std::min(kBlock, groups - block * kBlock);
        for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) {
            const int64_t n = row / gradient.height, o = row % gradient.height;
            const float* image = in.data + n * in.image + block * in.block;
            const float* dy_row = gradient.data + n * gradient.image + block * gradient.block + o * gradient.row;
            for (int64_t k = 0; k < down.size; ++k) {
                const int64_t place = down.place(o, k);
                if (place < 0 || place >= in.height) continue;
                const Row r{image + place * in.row, dy_row, in.column, gradient.column, in.width, gradient.width, channels, across};
                for (int64_t first = 0; first < across.size; first += kMostColumns) {
                    const int64_t columns = std::min(kMostColumns, across.size - first);
                    row_of(channels == kBlock, columns)(r, first, &totals[task * taps + k * across.size]);
                }
            }
        }
    }

    auto* out = static_cast<float*>(dw.data);
    for (int64_t c = 0; c < groups; ++c)
        for (int64_t k = 0; k < taps; ++k) {
            float sum = 0;
            for (int64_t part = 0; part < parts; ++part) sum += totals[(c / kBlock * parts + part) * taps + k][c % kBlock];
            const int64_t row = rank == 4 ? k / across.size * dw.strides[2] : 0;
            out[c * dw.strides[0] + row + k % across.size * dw.strides[rank - 1]] = sum;
        }
    return true;
}

}  // namespace daceopt
