// Convolutions by oneDNN: what generated code calls. Compiled once, in libs/src/onednn_convolution.cpp.
//
// Tensors are float32 or bfloat16 with any strides; channels-first, channels-last and blocked ones are passed as they are, others are
// copied.
// Every function may run on any number of threads at once, reports to `status` and never throws.
//
// Kept small: each program that calls oneDNN reads it.
#pragma once
#include <cstdint>
#include <limits>

#include "daceopt/element.h"
#include "daceopt/sizes.h"
#include "daceopt/status.h"
#include "daceopt/weights.h"

namespace daceopt {

#ifdef DACEOPT_BLOCK  // what calls the sources does not need it
constexpr int64_t kBlock = DACEOPT_BLOCK;  // channels that stand together in a blocked tensor: a vector of float32
#endif

struct Tensor {  // data may be null: absent
    void* data;
    Sizes dims, strides;
    Element type = Element::kFloat;
    bool is_blocked = false;  // (N, C / kBlock, spatial..., kBlock) without gaps, whatever the strides say
};

// The layout in which a convolution works on images; operands in others are copied.
enum class Layout : int64_t { kFastest, kFirst, kLast, kBlocked };

struct Window {  // one entry per spatial dimension
    Sizes strides, dilations, pads_begin, pads_end;
};

// Constant weights, kept by one call for all threads as long as the library is loaded: one copy for each layout, which
// different sizes of the other operands may ask for.
class PackedWeights : public WeightMemory {
public:
    PackedWeights();
    PackedWeights(const PackedWeights&) = delete;
    PackedWeights& operator=(const PackedWeights&) = delete;
    ~PackedWeights() override;

    void* prepared(const Preparation& wanted) override;

private:
    struct Copies;
    Copies* copies_;
};

// Weights that may change between calls, kept by one call for all threads: a copy serves while what it was made of has the
// digest that it had. The last few copies are kept, for modules that share a program and for sizes that want another layout.
class CheckedWeights {
public:
    struct Copies;

    CheckedWeights();
    CheckedWeights(const CheckedWeights&) = delete;
    CheckedWeights& operator=(const CheckedWeights&) = delete;
    ~CheckedWeights();

    // What one thread works with; in the first iteration of a loop the weights are looked at.
    class Use : public WeightMemory {
    public:
        explicit Use(CheckedWeights& shared);
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        ~Use() override;

        Use* in(bool first) {
            is_first_ = first;
            return this;
        }

        void* prepared(const Preparation& wanted) override;

    private:
        struct Current;
        CheckedWeights& shared_;
        Current* current_;  // stays alive while it is in use, whatever other threads ask for
        bool is_first_ = true;
    };

private:
    Copies* copies_;
};

// What is done to a result in registers: value * scale + shift + residual, each where it is there (the first two have one
// number of float32 per channel), then the relu: at most its ceiling, and below 0 multiplied by its slope. That is oneDNN's
// parametric relu, which keeps NaN; a slope of 0 turns -inf into one: only careless runs use it (status.h), careful ones
// make a pass.
struct Epilogue {
    Tensor scale, shift, residual;
    bool relu = false;
    float slope = 0, ceiling = std::numeric_limits<float>::infinity();
};

// y = epilogue(conv(x, w) + bias)
void onednn_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y, const Epilogue& epilogue,
                        const Window& window, int64_t groups, Layout layout = Layout::kFastest, WeightMemory* kept = nullptr);
void onednn_convolution_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx, const Window& window, int64_t groups,
                                      Layout layout = Layout::kFastest, WeightMemory* kept = nullptr);
void onednn_convolution_backward_weights(const Tensor& x, const Tensor& dy, const Tensor& dw, const Window& window,
                                         int64_t groups, Layout layout = Layout::kFastest);

}  // namespace daceopt
