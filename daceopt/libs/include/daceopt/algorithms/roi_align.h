// Interpolated samples of regions of an image, averaged or maximised over the bins of a grid.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "daceopt/status.h"

namespace daceopt {
namespace roi {

// A sample's four neighbours in one image plane, and their weights; all zero outside of the image.
struct Sample {
    int64_t at[4] = {0, 0, 0, 0};
    double weight[4] = {0, 0, 0, 0};
};

struct Axis {
    int64_t low, high;
    double low_weight, high_weight;
};

inline Axis neighbours(double at, int64_t extent) {
    at = std::min(std::max(at, 0.0), double(extent - 1));
    const int64_t low = int64_t(at), high = std::min(low + 1, extent - 1);
    return {low, high, 1.0 - (at - double(low)), at - double(low)};
}

inline Sample sample(double y, double x, int64_t height, int64_t width) {
    Sample s;
    if (!(y >= -1.0 && y <= double(height) && x >= -1.0 && x <= double(width))) return s;  // also NaN
    const Axis v = neighbours(y, height), h = neighbours(x, width);
    return {{v.low * width + h.low, v.low * width + h.high, v.high * width + h.low, v.high * width + h.high},
            {v.low_weight * h.low_weight, v.low_weight * h.high_weight, v.high_weight * h.low_weight,
             v.high_weight * h.high_weight}};
}

// The part of a region's axis that one bin covers, and how many samples are taken there.
struct Bins {
    double start, size;
    int64_t samples;

    double position(int64_t bin, int64_t k) const {
        return start + (double(bin) + (double(k) + 0.5) / double(samples)) * size;
    }
};

constexpr int64_t kMostSamples = 1 << 20;

inline Bins bins(double first, double last, bool half, int64_t count, int64_t ratio) {
    const double span = half ? last - first : std::max(last - first, 1.0), size = span / double(count);
    const double wanted = ratio > 0 ? double(ratio) : std::max(std::ceil(size), 0.0);
    return {first, size, wanted <= double(kMostSamples) ? int64_t(wanted) : int64_t(-1)};  // -1: also NaN
}

// Calls visit(image, region, row, column, samples) for each bin, unless a region is none; arguments as of roi_align.
template <typename T, typename I, typename Visit>
void each_bin(const T* rois, const I* images, const double* scale, const int64_t* parameters, Visit visit) {
    const int64_t count = parameters[0], height = parameters[2], width = parameters[3];
    const int64_t regions = parameters[4], rows = parameters[5], columns = parameters[6], ratio = parameters[7];
    const bool half = parameters[9];
    const double shift = half ? 0.5 : 0.0;
    std::vector<Sample> samples;
    for (int64_t r = 0; r < regions; ++r) {
        const int64_t image = int64_t(images[r]);
        if (image < 0 || image >= count || height == 0 || width == 0)
            return fail_index("RoiAlign", "batch_indices names no image");
        const T* roi = rois + 4 * r;
        const Bins v = bins(roi[1] * *scale - shift, roi[3] * *scale - shift, half, rows, ratio);
        const Bins h = bins(roi[0] * *scale - shift, roi[2] * *scale - shift, half, columns, ratio);
        if (v.samples < 0 || h.samples < 0 || v.samples * h.samples > kMostSamples)
            return fail("RoiAlign", "a region is too large, or NaN");
        samples.resize(size_t(v.samples * h.samples));
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = 0; column < columns; ++column) {
                for (int64_t i = 0; i < v.samples; ++i)
                    for (int64_t j = 0; j < h.samples; ++j)
                        samples[size_t(i * h.samples + j)] =
                            sample(v.position(row, i), h.position(column, j), height, width);
                visit(image, r, row, column, samples);
            }
    }
}

}  // namespace roi

// x: [N, C, H, W]; rois: [R, 4] as x1, y1, x2, y2; images: [R]; scale: [1]; y: [R, C, rows, columns].
// parameters: N, C, H, W, R, rows, columns; samples per bin and axis (0: as many as it has pixels); 1 for maxima; 1 for
// regions whose pixels have their centre at one half. As in ONNX, a maximum is over the weighted neighbours.
template <typename T, typename I>
void roi_align(const T* x, const T* rois, const I* images, const double* scale, T* y, const int64_t* parameters) {
    const int64_t channels = parameters[1], pixels = parameters[2] * parameters[3];
    const int64_t rows = parameters[5], columns = parameters[6];
    const bool largest = parameters[8];
    const auto visit = [=](int64_t image, int64_t r, int64_t row, int64_t column, const auto& samples) {
        const int64_t taken = int64_t(samples.size());
        T* out = y + (r * channels * rows + row) * columns + column;
#pragma omp parallel for if (channels * taken > 8192)
        for (int64_t c = 0; c < channels; ++c) {
            const T* plane = x + (image * channels + c) * pixels;
            double total = 0;
            for (int64_t k = 0; k < taken; ++k)
                for (int64_t n = 0; n < 4; ++n) {
                    const double value = samples[size_t(k)].weight[n] * double(plane[samples[size_t(k)].at[n]]);
                    if (!largest) total += value;
                    else if ((k == 0 && n == 0) || value > total || value != value) total = value;
                }
            out[c * rows * columns] = T(largest ? total : total / double(std::max<int64_t>(taken, 1)));
        }
    };
    roi::each_bin(rois, images, scale, parameters, visit);
}

}  // namespace daceopt
