// Convolutions by oneDNN: what generated code calls. Compiled once, in libs/src/onednn_convolution.cpp.
//
// Tensors are float32 with any strides; channels-first and channels-last ones are passed as they are, others are copied.
// Every function may run on any number of threads at once, reports to `status` and never throws.
#pragma once
#include <cstdint>
#include <vector>

#include "daceopt/status.h"

namespace daceopt {

struct Tensor {  // data may be null: absent
    float* data;
    std::vector<int64_t> dims, strides;
};

struct Window {  // one entry per spatial dimension
    std::vector<int64_t> strides, dilations, pads_begin, pads_end;
};

// y = conv(x, w) + bias + residual
void onednn_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual, const Tensor& y,
                        const Window& window, int64_t groups);
void onednn_convolution_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window& window, int64_t groups);
void onednn_convolution_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Tensor& db,
                                         const Window& window, int64_t groups);

}  // namespace daceopt
