// Gradients of interpolated samples of regions by the image.
#pragma once
#include "daceopt/algorithms/roi_align.h"

namespace daceopt {

// dx: [N, C, H, W], from dy: [R, C, rows, columns]; the rest as for roi_align. A mean goes back to all neighbours of
// its samples by their weights, a maximum to the first of the largest.
template <typename T, typename I>
void roi_align_gradient(const T* x, const T* rois, const I* images, const double* scale, const T* dy, T* dx,
                        const int64_t* parameters) {
    const int64_t channels = parameters[1], pixels = parameters[2] * parameters[3];
    const int64_t rows = parameters[5], columns = parameters[6];
    const bool largest = parameters[8];
    std::fill(dx, dx + parameters[0] * channels * pixels, T(0));
    const auto visit = [=](int64_t image, int64_t r, int64_t row, int64_t column, const auto& samples) {
        const int64_t taken = int64_t(samples.size());
        const T* in = dy + (r * channels * rows + row) * columns + column;
#pragma omp parallel for if (channels * taken > 8192)
        for (int64_t c = 0; c < channels; ++c) {
            const T* plane = x + (image * channels + c) * pixels;
            T* out = dx + (image * channels + c) * pixels;
            const double given = double(in[c * rows * columns]);
            double best = 0, weight = 0;
            int64_t at = -1;
            for (int64_t k = 0; k < taken; ++k)
                for (int64_t n = 0; n < 4; ++n) {
                    const double w = samples[size_t(k)].weight[n];
                    const int64_t place = samples[size_t(k)].at[n];
                    const double value = largest ? w * double(plane[place]) : 0;
                    if (!largest) out[place] += T(given * w / double(taken));
                    else if (at < 0 || value > best || (value != value && best == best))
                        best = value, weight = w, at = place;
                }
            if (at >= 0) out[at] += T(given * weight);
        }
    };
    roi::each_bin(rois, images, scale, parameters, visit);
}

}  // namespace daceopt
