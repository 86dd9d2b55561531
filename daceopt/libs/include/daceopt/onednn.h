// Convolutions by oneDNN: what generated code calls. Compiled once, in libs/src/onednn_convolution.cpp.
//
// Tensors are float32 or bfloat16 with any strides; channels-first and channels-last ones are passed as they are, others are copied.
// Every function may run on any number of threads at once, reports to `status` and never throws.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "daceopt/element.h"
#include "daceopt/status.h"

namespace daceopt {

struct Tensor {  // data may be null: absent
    void* data;
    std::vector<int64_t> dims, strides;
    Element type = Element::kFloat;
};

struct Window {  // one entry per spatial dimension
    std::vector<int64_t> strides, dilations, pads_begin, pads_end;
};

// Weights in the layout of a kernel, kept by one call in one thread for the iterations of a loop in which they are the same.
class HeldWeights {
public:
    HeldWeights() = default;
    HeldWeights(const HeldWeights&) = delete;
    HeldWeights& operator=(const HeldWeights&) = delete;
    ~HeldWeights() { std::free(data_); }

    // In the first iteration of the loop they are prepared.
    HeldWeights* in(bool first) {
        is_first = first;
        return this;
    }

    // Null where there is no memory.
    void* get(size_t bytes) {
        if (bytes > size_) {
            std::free(data_);
            size_ = (bytes + 4095) / 4096 * 4096;
            data_ = std::aligned_alloc(64, size_);
            if (!data_) size_ = 0;
        }
        return data_;
    }

    bool is_first = true;

private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

// y = conv(x, w) + bias + residual
void onednn_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual, const Tensor& y,
                        const Window& window, int64_t groups, HeldWeights* held = nullptr);
void onednn_convolution_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window& window, int64_t groups,
                                      HeldWeights* held = nullptr);
void onednn_convolution_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Window& window,
                                         int64_t groups);

}  // namespace daceopt
