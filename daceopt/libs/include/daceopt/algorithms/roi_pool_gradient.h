// Gradients of maxima of regions by the image.
#pragma once
#include <algorithm>

#include "daceopt/algorithms/roi_pool.h"

namespace daceopt {

// dx: [N, C, H, W], from dy: [R, C, rows, columns]; the rest as for roi_pool. It goes to each bin's maximum.
template <typename T>
void roi_pool_gradient(const T* x, const T* rois, const double* scale, const T* dy, T* dx, const int64_t* parameters) {
    const int64_t channels = parameters[1], width = parameters[3], pixels = parameters[2] * width;
    const int64_t rows = parameters[5], columns = parameters[6];
    std::fill(dx, dx + parameters[0] * channels * pixels, T(0));
    const auto visit = [=](int64_t image, int64_t r, int64_t c, int64_t row, int64_t column, auto v, auto h) {
        const int64_t first = (image * channels + c) * pixels;
        const int64_t best = roi::place_of_maximum(x + first, v, h, width);
        if (best >= 0) dx[first + best] += dy[((r * channels + c) * rows + row) * columns + column];
    };
    roi::each_pool(rois, scale, parameters, visit);
}

}  // namespace daceopt
