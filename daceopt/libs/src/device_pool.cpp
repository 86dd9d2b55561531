// Pooling on a device: a thread for each element of what is written, in the order of its memory. An element of a gradient
// gathers from the windows that reach it, in their order, so that nothing is added to in memory. `dop::launch` is cuda.h's.
#include <cstdint>
#include <limits>

#include "daceopt/device_pool.h"

namespace daceopt {
namespace {

constexpr unsigned kThreads = 256;

template <typename T>
constexpr T kLowest =
    std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();

struct Element {
    int64_t image, channel, at[3];
};

// Element number `k` of images of these extents, channels innermost or not.
__device__ Element element(int64_t k, int64_t channels, const int64_t (&extents)[3], bool innermost) {
    Element e;
    if (innermost) {
        e.channel = k % channels;
        k /= channels;
    }
    for (int d = 2; d >= 0; --d) {
        e.at[d] = k % extents[d];
        k /= extents[d];
    }
    if (!innermost) {
        e.channel = k % channels;
        k /= channels;
    }
    e.image = k;
    return e;
}

__device__ int64_t place(const int64_t (&strides)[5], const Element& e, const int64_t (&at)[3]) {
    return e.image * strides[0] + e.channel * strides[1] + at[0] * strides[2] + at[1] * strides[3] + at[2] * strides[4];
}

// Calls visit(number of the position in the window, place in the image) for each position inside of the image.
template <typename Visit>
__device__ void visit_window(const PoolShape& s, const Element& e, Visit visit) {
    int64_t start[3];
    for (int d = 0; d < 3; ++d) start[d] = e.at[d] * s.stride[d] - s.pad[d];
    for (int64_t z = 0; z < s.kernel[0]; ++z)
        for (int64_t y = 0; y < s.kernel[1]; ++y)
            for (int64_t x = 0; x < s.kernel[2]; ++x) {
                const int64_t i[3] = {start[0] + z * s.dilation[0], start[1] + y * s.dilation[1], start[2] + x * s.dilation[2]};
                bool inside = true;
                for (int d = 0; d < 3; ++d) inside &= i[d] >= 0 && i[d] < s.in[d];
                if (inside) visit((z * s.kernel[1] + y) * s.kernel[2] + x, place(s.in_strides, e, i));
            }
}

// The windows along one dimension that may reach position `i`: [first, last).
struct Windows {
    int64_t first, last;
};

__device__ Windows windows(const PoolShape& s, int d, int64_t i) {
    const int64_t reach = (s.kernel[d] - 1) * s.dilation[d], behind = i + s.pad[d];
    const int64_t first = behind <= reach ? 0 : (behind - reach + s.stride[d] - 1) / s.stride[d];
    const int64_t last = behind / s.stride[d] + 1;
    return {first, last < s.out[d] ? last : s.out[d]};
}

// Calls visit(position in the window, window) for each window that has the element in it.
template <typename Visit>
__device__ void visit_windows(const PoolShape& s, const Element& e, Visit visit) {
    Windows w[3];
    for (int d = 0; d < 3; ++d) w[d] = windows(s, d, e.at[d]);
    int64_t o[3];
    for (o[0] = w[0].first; o[0] < w[0].last; ++o[0])
        for (o[1] = w[1].first; o[1] < w[1].last; ++o[1])
            for (o[2] = w[2].first; o[2] < w[2].last; ++o[2]) {
                int64_t position = 0;
                bool reached = true;
                for (int d = 0; d < 3; ++d) {
                    const int64_t distance = e.at[d] + s.pad[d] - o[d] * s.stride[d];
                    reached &= distance % s.dilation[d] == 0;
                    position = position * s.kernel[d] + distance / s.dilation[d];
                }
                if (reached) visit(position, o);
            }
}

// What a window is divided by: its elements inside of the image, or of the padded image; the average of nothing is 0.
__device__ int64_t divisor(const PoolShape& s, const int64_t (&o)[3], bool padding) {
    int64_t count = 1;
    for (int d = 0; d < 3; ++d) {
        const int64_t low = padding ? -s.pad[d] : 0, high = s.in[d] + (padding ? s.pad_end[d] : 0);
        int64_t inside = 0;
        for (int64_t k = 0; k < s.kernel[d]; ++k) {
            const int64_t i = o[d] * s.stride[d] - s.pad[d] + k * s.dilation[d];
            inside += i >= low && i < high;
        }
        count *= inside;
    }
    return count > 0 ? count : 1;
}

template <typename T, typename Where>
__global__ void maximum(PoolShape s, int64_t count, bool innermost, const T* x, T* y, Where* where) {
    const int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (k >= count) return;
    const Element e = element(k, s.channels, s.out, innermost);
    T top = kLowest<T>;
    int64_t found = -1;
    visit_window(s, e, [&](int64_t position, int64_t at) {
        const T v = x[at];
        if (!(v > top || v != v || found < 0)) return;
        top = v;
        found = position;
    });
    y[place(s.out_strides, e, e.at)] = top;
    if (where) where[place(s.where_strides, e, e.at)] = Where(found < 0 ? 0 : found);
}

template <typename T, typename Where>
__global__ void maximum_backward(PoolShape s, int64_t count, bool innermost, const T* dy, const Where* where, T* dx) {
    const int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (k >= count) return;
    const Element e = element(k, s.channels, s.in, innermost);
    T sum = 0;
    visit_windows(s, e, [&](int64_t position, const int64_t (&o)[3]) {
        if (int64_t(where[place(s.where_strides, e, o)]) == position) sum += dy[place(s.out_strides, e, o)];
    });
    dx[place(s.in_strides, e, e.at)] = sum;
}

template <typename T>
__global__ void average(PoolShape s, int64_t count, bool innermost, const T* x, T* y, bool padding) {
    const int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (k >= count) return;
    const Element e = element(k, s.channels, s.out, innermost);
    T sum = 0;
    visit_window(s, e, [&](int64_t, int64_t at) { sum += x[at]; });
    y[place(s.out_strides, e, e.at)] = sum / T(divisor(s, e.at, padding));
}

template <typename T>
__global__ void average_backward(PoolShape s, int64_t count, bool innermost, const T* dy, T* dx, bool padding) {
    const int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (k >= count) return;
    const Element e = element(k, s.channels, s.in, innermost);
    T sum = 0;
    visit_windows(s, e, [&](int64_t, const int64_t (&o)[3]) {
        sum += dy[place(s.out_strides, e, o)] / T(divisor(s, o, padding));
    });
    dx[place(s.in_strides, e, e.at)] = sum;
}

// Starts `kernel` with a thread for each element of images of these extents and strides.
template <typename... Parameters, typename... Arguments>
void start(void* stream, const PoolShape& s, const int64_t (&extents)[3], const int64_t (&strides)[5],
           void (*kernel)(PoolShape, int64_t, bool, Parameters...), Arguments... arguments) {
    const int64_t count = s.batch * s.channels * extents[0] * extents[1] * extents[2];
    const bool innermost = s.channels > 1 && strides[1] == 1;
    dop::launch(stream, (count + kThreads - 1) / kThreads, kThreads, kernel, s, count, innermost, arguments...);
}

}  // namespace

template <typename T, typename Where>
void device_max_pool(void* stream, const PoolShape& s, const T* x, T* y, Where* where) {
    start(stream, s, s.out, s.out_strides, maximum<T, Where>, x, y, where);
}

template <typename T, typename Where>
void device_max_pool_backward(void* stream, const PoolShape& s, const T* dy, const Where* where, T* dx) {
    start(stream, s, s.in, s.in_strides, maximum_backward<T, Where>, dy, where, dx);
}

template <typename T>
void device_average_pool(void* stream, const PoolShape& s, const T* x, T* y, bool padding) {
    start(stream, s, s.out, s.out_strides, average<T>, x, y, padding);
}

template <typename T>
void device_average_pool_backward(void* stream, const PoolShape& s, const T* dy, T* dx, bool padding) {
    start(stream, s, s.in, s.in_strides, average_backward<T>, dy, dx, padding);
}

using T = DACEOPT_T;
template void device_max_pool(void*, const PoolShape&, const T*, T*, uint8_t*);
template void device_max_pool(void*, const PoolShape&, const T*, T*, int32_t*);
template void device_max_pool_backward(void*, const PoolShape&, const T*, const uint8_t*, T*);
template void device_max_pool_backward(void*, const PoolShape&, const T*, const int32_t*, T*);
template void device_average_pool(void*, const PoolShape&, const T*, T*, bool);
template void device_average_pool_backward(void*, const PoolShape&, const T*, T*, bool);

}  // namespace daceopt
