// Products and convolutions of 8-bit integers by oneDNN: what generated code calls. Compiled once, in libs/src/onednn_quantized.cpp.
//
// Sums of products are exact 32-bit integers. Every function may run on any number of threads at once, reports to `status` and
// never throws.
#pragma once
#include "daceopt/onednn.h"

namespace daceopt {

// What becomes of the sums t of a channel: t * scale + shift, which is rounded, clamped and moved by zero_y where the result
// has 8 bits. zero_x stands for 0 in the operand and its padding.
struct Requantization {
    const double* scale;
    const double* shift;  // null: none
    int32_t zero_x, zero_y;
    bool clamps;  // more closely than the type of the result does
    float low, high;
};

// Weights are int8, the operand and the result (of which float32 is allowed, too) as their tensors say.
void onednn_quantized_convolution(const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r, const Window& window,
                                  int64_t groups, WeightMemory* kept);
// x: (m, k), w: (k, n), y: (m, n)
void onednn_quantized_product(const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r, WeightMemory* kept);

}  // namespace daceopt
