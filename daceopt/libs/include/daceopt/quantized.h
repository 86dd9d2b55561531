// Products and convolutions of 8-bit integers by oneDNN: what generated code calls. Compiled once, in libs/src/onednn_quantized.cpp.
//
// Sums of products are exact 32-bit integers. Every function may run on any number of threads at once, reports to `status` and
// never throws.
#pragma once
#include "daceopt/onednn.h"

namespace daceopt {

// What becomes of the sums t of a channel: t * scale + shift, which is rounded, clamped and moved by zero_y where the result
// has 8 bits. zero_x stands for 0 in the operand and its padding, zero_w in the weights.
struct Requantization {
    const double* scale;  // one number, or one for each channel
    const double* shift;  // as many; null: none
    int64_t channels;     // how many
    int32_t zero_x, zero_w, zero_y;
    bool clamps;  // more closely than the type of the result does
    float low, high;
};

// Weights are int8, the operand and the result (of which float32 is allowed, too) as their tensors say.
void onednn_quantized_convolution(const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r, const Window& window,
                                  int64_t groups, WeightMemory* kept);
// x: (batch, m, k), w: (batch, k, n), y: (batch, m, n), or without the batch. Weights may be uint8, and other ones in each call,
// where nothing is `kept`.
void onednn_quantized_product(const Tensor& x, const Tensor& w, const Tensor& y, const Requantization& r, WeightMemory* kept = nullptr);

}  // namespace daceopt
