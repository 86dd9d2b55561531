// How long convolutions of a shape take in each layout of their images: measured by calling them as programs do.
#include <ctime>
#include "daceopt/threads.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "daceopt/onednn.h"
#include "daceopt/scratch.h"

namespace {

using namespace daceopt;

constexpr int kLayouts = 3;  // first, last, blocked
constexpr int kMostRuns = 15;
constexpr double kBehind = 1.15;  // times as long as the best in two runs: further ones would tell nothing
constexpr float kValue = 0.01f;

// Of this thread: others may use the processor meanwhile.
double now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Libraries work on this thread alone.
class OneThread {
public:
    OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
    ~OneThread() { omp_set_num_threads(before_); }

private:
    const int before_;
};

class Numbers {
public:
    explicit Numbers(const int64_t* next) : next_(next) {}
    int64_t one() { return *next_++; }
    std::vector<int64_t> list(int64_t count) {
        next_ += count;
        return {next_ - count, next_};
    }

private:
    const int64_t* next_;
};

int64_t size_of(const std::vector<int64_t>& dims) {
    int64_t size = 1;
    for (int64_t n : dims) size *= n;
    return size;
}

// Channels of an image in blocks are filled up.
std::vector<float> memory_for(std::vector<int64_t> dims, bool is_image) {
    if (is_image) dims[1] = (dims[1] + kBlock - 1) / kBlock * kBlock;
    return std::vector<float>(size_of(dims), kValue);
}

std::vector<int64_t> strides_of(const std::vector<int64_t>& dims, bool is_last) {
    std::vector<int64_t> strides(dims.size());
    int64_t step = 1;
    if (is_last) strides[1] = 1, step = dims[1];
    for (size_t d = dims.size(); d-- > 0;) {
        if (is_last && d == 1) continue;
        strides[d] = step;
        step *= dims[d];
    }
    return strides;
}

struct Call {
    int64_t pass, is_packed, groups;
    std::vector<int64_t> x_dims, w_dims, y_dims;
    Window window;
    std::vector<float> x, w, y;
    PackedWeights packed;

    Tensor image(std::vector<float>& data, const std::vector<int64_t>& dims, Layout layout) const {
        const bool is_blocked = layout == Layout::kBlocked && dims[1] >= kBlock;
        return {data.data(), dims, strides_of(dims, layout == Layout::kLast), Element::kFloat, is_blocked};
    }

    void run(Layout layout) {
        const Tensor a = image(x, x_dims, layout), c = image(y, y_dims, layout), none{nullptr, {}, {}};
        const Tensor b{w.data(), w_dims, strides_of(w_dims, false)};
        WeightMemory* const kept = is_packed ? &packed : nullptr;
        if (pass == 0) return onednn_convolution(a, b, none, c, {none, none, none}, window, groups, layout, kept);
        if (pass == 1) return onednn_convolution_backward_data(c, b, a, window, groups, layout, kept);
        onednn_convolution_backward_weights(a, c, b, window, groups, layout);
    }
};

void parse(const int64_t* numbers, Call& call) {
    Numbers next(numbers);
    call.pass = next.one();
    call.is_packed = next.one();
    call.groups = next.one();
    const int64_t rank = next.one();
    for (auto* dims : {&call.x_dims, &call.w_dims, &call.y_dims}) *dims = next.list(rank + 2);
    for (auto* list : {&call.window.strides, &call.window.dilations, &call.window.pads_begin, &call.window.pads_end})
        *list = next.list(rank);
    call.x = memory_for(call.x_dims, true);
    call.w = memory_for(call.w_dims, false);
    call.y = memory_for(call.y_dims, true);
}

}  // namespace

// `numbers`: pass, whether weights are prepared before, groups, spatial dimensions; extents of x, w, y; strides, dilations,
// pads before and behind. The least seconds of a processor that one thread takes for some runs, in turn, in each layout;
// channels that do not fill a block are copied where others are in blocks. Runs take about `budget` seconds; a layout that
// is far behind has no more of them. Returns 1, and no times, where a layout has no kernel.
extern "C" __attribute__((visibility("default"))) int daceopt_convolution_times(const int64_t* numbers, double budget, double* seconds) {
    clear_status();
    const OneThread alone;
    struct Release {  // this library stays loaded, and is not called again for a while
        ~Release() { detail::release_scratch(); }
    } release;
    Call call;
    parse(numbers, call);
    std::fill(seconds, seconds + kLayouts, std::numeric_limits<double>::infinity());
    for (int layout = 0; layout < kLayouts; ++layout) call.run(static_cast<Layout>(layout + 1));
    const double start = now();
    for (int run = 0; run < kMostRuns && (run < 1 || now() - start < budget); ++run)
        for (int layout = 0; layout < kLayouts; ++layout) {
            if (run > 1 && seconds[layout] > kBehind * *std::min_element(seconds, seconds + kLayouts)) continue;
            const double before = now();
            call.run(static_cast<Layout>(layout + 1));
            seconds[layout] = std::min(seconds[layout], now() - before);
        }
    return status.failed;
}
