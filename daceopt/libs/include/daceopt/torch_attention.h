// Attention by torch's fused operators, on arrays of any device that torch knows.
#pragma once
#include "daceopt/torch_device.h"

namespace daceopt {

// softmax(scale Q K' + mask) V of [batch, heads, length, size]. Heads of K and V may be fewer: each serves as many of Q.
// The mask is added, or says which keys are seen; its shape broadcasts to that of the scores.
struct DeviceAttention {
    Where where;
    double scale;
    bool causal;
    DeviceArray q, k, v, mask;
};

// `lse`: of each row the logarithm of the sum of the scores' exponentials, rows padded to a multiple of 32; may be none.
void device_attention(const DeviceAttention& attention, const DeviceArray& y, const DeviceArray& lse);

// The gradients that are there.
void device_attention_backward(const DeviceAttention& attention, const DeviceArray& y, const DeviceArray& lse,
                               const DeviceArray& dy, const DeviceArray& dq, const DeviceArray& dk, const DeviceArray& dv);

}  // namespace daceopt
