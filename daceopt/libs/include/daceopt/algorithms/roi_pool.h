// Maxima of regions of an image over the bins of a grid.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "daceopt/status.h"

namespace daceopt {
namespace roi {

struct Range {
    int64_t first, last;
};

// The pixels of a bin of the region [first, last] along an axis of `extent` pixels, in single precision as in Caffe.
inline Range bin(int64_t first, int64_t last, int64_t place, int64_t count, int64_t extent) {
    const float size = float(std::max<int64_t>(last - first + 1, 1)) / float(count);
    const int64_t begin = int64_t(std::floor(float(place) * size)) + first;
    const int64_t end = int64_t(std::ceil(float(place + 1) * size)) + first;
    return {std::clamp<int64_t>(begin, 0, extent), std::clamp<int64_t>(end, 0, extent)};
}

// Calls visit(image, region, channel, row, column, rows of pixels, columns of pixels) for each bin, unless a region is
// none; channels in parallel. Arguments as of roi_pool.
template <typename T, typename Visit>
void each_pool(const T* rois, const double* scale, const int64_t* parameters, Visit visit) {
    const int64_t count = parameters[0], channels = parameters[1], height = parameters[2], width = parameters[3];
    const int64_t regions = parameters[4], rows = parameters[5], columns = parameters[6];
    constexpr double kFarthest = 1 << 30;
    for (int64_t r = 0; r < regions; ++r) {
        const T* roi = rois + 5 * r;
        int64_t corner[4];
        bool valid = roi[0] >= 0 && roi[0] < double(count);
        for (int k = 0; k < 4; ++k) {
            const double at = std::round(double(roi[1 + k] * T(*scale)));
            valid = valid && std::abs(at) <= kFarthest;
            corner[k] = valid ? int64_t(at) : 0;
        }
        if (!valid) return fail_index("MaxRoiPool", "a region is in no image, or has no finite corners");
        const int64_t image = int64_t(roi[0]);
#pragma omp parallel for if (channels * height * width > 32768)
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t column = 0; column < columns; ++column)
                    visit(image, r, c, row, column, bin(corner[1], corner[3], row, rows, height),
                          bin(corner[0], corner[2], column, columns, width));
    }
}

// The place of a bin's maximum in its image plane: the first of equals, the last NaN; -1 where the bin is empty.
template <typename T>
int64_t place_of_maximum(const T* plane, Range v, Range h, int64_t width) {
    int64_t best = -1;
    for (int64_t i = v.first; i < v.last; ++i)
        for (int64_t j = h.first; j < h.last; ++j) {
            const int64_t at = i * width + j;
            if (best < 0 || plane[at] > plane[best] || plane[at] != plane[at]) best = at;
        }
    return best;
}

}  // namespace roi

// x: [N, C, H, W]; rois: [R, 5] as image, x1, y1, x2, y2; scale: [1]; y: [R, C, rows, columns].
// parameters: N, C, H, W, R, rows, columns. An empty bin gives 0.
template <typename T>
void roi_pool(const T* x, const T* rois, const double* scale, T* y, const int64_t* parameters) {
    const int64_t channels = parameters[1], width = parameters[3], pixels = parameters[2] * width;
    const int64_t rows = parameters[5], columns = parameters[6];
    const auto visit = [=](int64_t image, int64_t r, int64_t c, int64_t row, int64_t column, auto v, auto h) {
        const T* plane = x + (image * channels + c) * pixels;
        const int64_t best = roi::place_of_maximum(plane, v, h, width);
        y[((r * channels + c) * rows + row) * columns + column] = best < 0 ? T(0) : plane[best];
    };
    roi::each_pool(rois, scale, parameters, visit);
}

}  // namespace daceopt
