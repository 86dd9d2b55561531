// The weight gradient of depthwise convolutions, whose channels are vectors. Compiled in libs/src/depthwise.cpp.
//
// oneDNN has a kernel for it in blocks of channels and for narrow windows only. For others it computes 16 x 16 channels of
// which the diagonal is wanted, or multiplies matrices of one row.
#pragma once
#include "daceopt/onednn.h"

namespace daceopt {

// dw[c, 0, k...] = the sum over images and places o of dy[n, c, o...] * x[n, c, o * stride - pad + k * dilation ...], if all
// are float32, there are one or two spatial dimensions, and the channels of both images lie side by side (channels last, or
// blocks of channels); else nothing is done, and the answer is false. Rows are added up apart, and then their sums.
bool depthwise_weight_gradient(const Tensor& x, const Tensor& dy, const Tensor& dw, const Window& window, int64_t groups);

}  // namespace daceopt
