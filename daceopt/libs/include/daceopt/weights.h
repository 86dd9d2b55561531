// Weights as a library wants them, prepared once for many calls.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>

namespace daceopt {

// How weights are prepared: a function of where they go and where they come from, which lives as long as the call that is
// told of it. (std::function would cost whatever includes this file a fifth of a second.)
class Fill {
public:
    template <typename F>
    Fill(const F& function)
        : function_(&function),
          call_([](const void* f, void* place, const void* source) { (*static_cast<const F*>(f))(place, source); }) {}

    void operator()(void* place, const void* source) const { call_(function_, place, source); }

private:
    const void* function_;
    void (*call_)(const void* function, void* place, const void* source);
};

// Weights as a kernel wants them: `bytes` in `layout` (the library's description of them), which `fill` makes of what stands in
// `source`, multiplied by the `factors` of their channels where there are some.
struct Preparation {
    const void* layout;
    size_t bytes;
    const void* source;
    size_t source_bytes;
    Fill fill;
    const void* factors = nullptr;
    size_t factors_bytes = 0;
};

// Memory for weights in the layout of a kernel, which outlives the call.
class WeightMemory {
public:
    virtual ~WeightMemory() = default;

    // The prepared weights, filled where they do not stand there yet. Throws std::bad_alloc.
    virtual void* prepared(const Preparation& wanted) = 0;

    // Whether what is prepared has other numbers, which are wanted also where the layout is the same.
    virtual bool has_factors() const { return false; }
};

// Kept by one call in one thread for the iterations of a loop in which the weights are the same.
class HeldWeights : public WeightMemory {
public:
    HeldWeights() = default;
    HeldWeights(const HeldWeights&) = delete;
    HeldWeights& operator=(const HeldWeights&) = delete;
    ~HeldWeights() override { std::free(data_); }

    // In the first iteration of the loop they are prepared.
    HeldWeights* in(bool first) {
        is_first_ = first;
        return this;
    }

    void* prepared(const Preparation& wanted) override {
        if (wanted.bytes > size_) {
            std::free(data_);
            size_ = (wanted.bytes + 4095) / 4096 * 4096;
            data_ = std::aligned_alloc(64, size_);
            if (!data_) { size_ = 0; throw std::bad_alloc(); }
        }
        if (is_first_) wanted.fill(data_, wanted.source);
        return data_;
    }

private:
    bool is_first_ = true;
    void* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace daceopt
