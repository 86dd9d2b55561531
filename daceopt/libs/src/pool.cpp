// Pooling. Vector lanes run along channels where these are dense in memory, else along rows of the result; no two lanes of one
// window position meet in one input element, so that the backward pass adds without conflicts.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "daceopt/pool.h"

namespace daceopt {
namespace {

constexpr int64_t kParallelPoolElements = 16384;
constexpr int64_t kChannelBlock = sizeof(DACEOPT_T) == 1 ? 64 : 32;
constexpr int64_t kLongRow = 32;  // elements of a window's row that are worth vectors of their own

enum { kDepth, kHeight, kWidth };

// The part of one image that one thread works on: channels [first, last), as lanes or one after the other.
struct Part {
    int64_t image, first, last;
};

struct Lanes {
    int64_t count, in_step, out_step, where_step;
};

// Places of lane 0 in the result and in the workspace.
struct Offsets {
    int64_t out, where;
};

bool along_channels(const PoolShape& s) { return s.channels > 1 && s.in_strides[1] == 1 && s.out_strides[1] == 1; }

// In an empty range of a window position, first >= last.
struct Range {
    int64_t first, last;
};

// Results o of [0, out) whose input o * stride + shift lies in [0, in).
Range inside(int64_t out, int64_t stride, int64_t shift, int64_t in) {
    const int64_t first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    const int64_t last = in - shift <= 0 ? 0 : std::min(out, (in - shift - 1) / stride + 1);
    return {first, last};
}

// Calls begin(lanes, offsets), then window(k, first, last, in_offset) for each position k of the kernel that has lanes
// [first, last) inside of the input, then end(), for every row of lanes. Offsets are those of lane 0.
template <typename Visitor>
void visit_row(const PoolShape& s, const Lanes& lanes, const int64_t (&o)[3], int64_t in_base, const Offsets& offsets,
               bool channels, Visitor& visitor) {
    visitor.begin(s, lanes, o, offsets);
    for (int64_t kd = 0; kd < s.kernel[kDepth]; ++kd) {
        const int64_t d = o[kDepth] * s.stride[kDepth] - s.pad[kDepth] + kd * s.dilation[kDepth];
        if (d < 0 || d >= s.in[kDepth]) continue;
        for (int64_t kh = 0; kh < s.kernel[kHeight]; ++kh) {
            const int64_t h = o[kHeight] * s.stride[kHeight] - s.pad[kHeight] + kh * s.dilation[kHeight];
            if (h < 0 || h >= s.in[kHeight]) continue;
            for (int64_t kw = 0; kw < s.kernel[kWidth]; ++kw) {
                const int64_t shift = kw * s.dilation[kWidth] - s.pad[kWidth], w = o[kWidth] * s.stride[kWidth] + shift;
                const Range range = !channels ? inside(s.out[kWidth], s.stride[kWidth], shift, s.in[kWidth])
                                    : w >= 0 && w < s.in[kWidth] ? Range{0, lanes.count} : Range{0, 0};
                const int64_t offset = in_base + d * s.in_strides[2] + h * s.in_strides[3] + w * s.in_strides[4];
                visitor.window((kd * s.kernel[kHeight] + kh) * s.kernel[kWidth] + kw, range, offset);
            }
        }
    }
    visitor.end();
}

template <typename Visitor>
void visit_part(const PoolShape& s, const Part& part, bool channels, Visitor& visitor) {
    const Lanes lanes = channels ? Lanes{part.last - part.first, 1, 1, s.where_strides[1]}
                                 : Lanes{s.out[kWidth], s.stride[kWidth] * s.in_strides[4], s.out_strides[4], s.where_strides[4]};
    const int64_t in_base = part.image * s.in_strides[0] + part.first * s.in_strides[1];
    const auto place = [&](const int64_t (&strides)[5], int64_t d, int64_t h, int64_t w) {
        return part.image * strides[0] + part.first * strides[1] + d * strides[2] + h * strides[3] + w * strides[4];
    };
    const int64_t columns = channels ? s.out[kWidth] : 1;
    for (int64_t d = 0; d < s.out[kDepth]; ++d)
        for (int64_t h = 0; h < s.out[kHeight]; ++h)
            for (int64_t w = 0; w < columns; ++w)
                visit_row(s, lanes, {d, h, w}, in_base, {place(s.out_strides, d, h, w), place(s.where_strides, d, h, w)},
                          channels, visitor);
}

// A visitor of its own for each thread; parts share no element of the input or of the result.
template <typename Make>
void visit(const PoolShape& s, Make make) {
    const bool channels = along_channels(s);
    const int64_t block = channels ? kChannelBlock : 1, blocks = (s.channels + block - 1) / block, parts = s.batch * blocks;
    const int64_t work = s.batch * s.channels * (s.in[0] * s.in[1] * s.in[2] + s.out[0] * s.out[1] * s.out[2]);
#pragma omp parallel if (work > kParallelPoolElements)
    {
        auto visitor = make();
#pragma omp for schedule(static)
        for (int64_t i = 0; i < parts; ++i) {
            const int64_t first = i % blocks * block;
            const Part part{i / blocks, first, std::min(first + block, s.channels)};
            visitor.prepare(s, part);
            visit_part(s, part, channels, visitor);
        }
    }
}

// In lanes along channels.
template <typename T, typename Where>
struct Maximum {
    static constexpr T kLowest =
        std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
    const T* x;
    T* y;
    Where* where;
    std::vector<T> best;
    std::vector<int32_t> position;
    Lanes lanes{};
    Offsets offset{};

    void prepare(const PoolShape&, const Part&) {}

    void begin(const PoolShape&, const Lanes& row, const int64_t (&)[3], const Offsets& start) {
        lanes = row;
        offset = start;
        best.assign(row.count, T(kLowest));  // a copy: before C++17 the constant has no address
        position.assign(row.count, -1);
    }

    void window(int64_t k, const Range& range, int64_t in_offset) {
        const T* in = x + in_offset;
        T* top = best.data();
        int32_t* at = position.data();
#pragma omp simd
        for (int64_t l = range.first; l < range.last; ++l) {
            const T v = in[l];
            const bool better = v > top[l] || v != v || at[l] < 0;
            top[l] = better ? v : top[l];
            at[l] = better ? int32_t(k) : at[l];
        }
    }

    void end() {
        for (int64_t l = 0; l < lanes.count; ++l) y[offset.out + l * lanes.out_step] = best[l];
        for (int64_t l = 0; where && l < lanes.count; ++l)
            where[offset.where + l * lanes.where_step] = Where(std::max(position[l], 0));
    }
};

// Maxima in lanes along rows, of a copy of each image: rows have margins of the lowest number, so that lanes fill vectors and
// no position of a window asks where the image ends, and columns stand by their remainder of the stride, so that lanes are
// neighbours.
template <typename T, typename Where>
class MaximumOfRows {
public:
    MaximumOfRows(const PoolShape& shape, const T* input, T* result, Where* positions)
        : s(shape), x(input), y(result), where(positions), lanes((s.out[kWidth] + kLanes - 1) / kLanes * kLanes) {
        const int64_t stride = s.stride[kWidth], reach = (s.kernel[kWidth] - 1) * s.dilation[kWidth] / stride + lanes;
        width = std::max(reach, (s.pad[kWidth] + s.in[kWidth] - 1) / stride + 1);
        image.assign(s.in[kDepth] * s.in[kHeight] * stride * width, kLowest);
        column.assign(lanes, 0);
        for (int64_t l = 0; l < s.out[kWidth]; ++l) {
            const auto outside = [&](int64_t k) {
                const int64_t w = l * stride - s.pad[kWidth] + k * s.dilation[kWidth];
                return k < s.kernel[kWidth] && (w < 0 || w >= s.in[kWidth]);
            };
            while (outside(column[l])) ++column[l];
        }
    }

    void pool(int64_t n, int64_t c) {
        copy(x + n * s.in_strides[0] + c * s.in_strides[1]);
        for (int64_t d = 0; d < s.out[kDepth]; ++d)
            for (int64_t h = 0; h < s.out[kHeight]; ++h) {
                set_windows(d, h);
                const auto place = [&](const int64_t (&strides)[5]) {
                    return n * strides[0] + c * strides[1] + d * strides[2] + h * strides[3];
                };
                for (int64_t w = 0; w < s.out[kWidth]; w += kLanes)
                    raise(w, y + place(s.out_strides), where ? where + place(s.where_strides) : nullptr);
            }
    }

private:
    static constexpr T kLowest = Maximum<T, Where>::kLowest;
    static constexpr int64_t kLanes = 16;

    struct Window {
        const T* in;
        int32_t position;
    };

    void copy(const T* from) {
        const int64_t stride = s.stride[kWidth], pad = s.pad[kWidth];
        for (int64_t d = 0; d < s.in[kDepth]; ++d)
            for (int64_t h = 0; h < s.in[kHeight]; ++h) {
                const T* line = from + d * s.in_strides[2] + h * s.in_strides[3];
                T* to = &image[(d * s.in[kHeight] + h) * stride * width];
                for (int64_t r = 0; r < stride; ++r) {
                    const int64_t first = r >= pad ? 0 : (pad - r + stride - 1) / stride;
                    const int64_t last = (pad + s.in[kWidth] - r + stride - 1) / stride;
                    if (stride * s.in_strides[4] == 1) std::copy_n(line, s.in[kWidth], to + pad);
                    else
                        for (int64_t q = first; q < last; ++q) to[r * width + q] = line[(q * stride + r - pad) * s.in_strides[4]];
                }
            }
    }

    // All positions of the windows of a row of results that lie inside of the image's rows.
    void set_windows(int64_t d, int64_t h) {
        windows.clear();
        for (int64_t k = 0; k < s.kernel[kDepth] * s.kernel[kHeight]; ++k) {
            const int64_t z = d * s.stride[kDepth] - s.pad[kDepth] + k / s.kernel[kHeight] * s.dilation[kDepth];
            const int64_t v = h * s.stride[kHeight] - s.pad[kHeight] + k % s.kernel[kHeight] * s.dilation[kHeight];
            if (z < 0 || z >= s.in[kDepth] || v < 0 || v >= s.in[kHeight]) continue;
            const T* row = &image[(z * s.in[kHeight] + v) * s.stride[kWidth] * width];
            for (int64_t i = 0; i < s.kernel[kWidth]; ++i) {
                const int64_t shift = i * s.dilation[kWidth], stride = s.stride[kWidth];
                windows.push_back({row + shift % stride * width + shift / stride, int32_t(k * s.kernel[kWidth] + i)});
            }
        }
    }

    // A maximum is where the first element inside of the image is, if nothing else is larger.
    void raise(int64_t begin, T* result, Where* places) const {
        T top[kLanes];
        int32_t at[kLanes];
        const int32_t start = windows.empty() ? 0 : windows.front().position;
#pragma omp simd
        for (int64_t l = 0; l < kLanes; ++l) {
            top[l] = kLowest;
            at[l] = start + column[begin + l];
        }
        for (const Window& window : windows) {
            const T* in = window.in + begin;
            const int32_t k = window.position;
#pragma omp simd
            for (int64_t l = 0; l < kLanes; ++l) {
                const T v = in[l];
                const bool better = (v > top[l]) | (v != v);
                top[l] = better ? v : top[l];
                at[l] = better ? k : at[l];
            }
        }
        const int64_t count = std::min(kLanes, s.out[kWidth] - begin);
        write(top, count, result + begin * s.out_strides[4], s.out_strides[4]);
        if (places) write(at, count, places + begin * s.where_strides[4], s.where_strides[4]);
    }

    template <typename From, typename To>
    static void write(const From* from, int64_t count, To* to, int64_t step) {
        if (step == 1 && count == kLanes)
#pragma omp simd
            for (int64_t l = 0; l < kLanes; ++l) to[l] = To(from[l]);
        else
            for (int64_t l = 0; l < count; ++l) to[l * step] = To(from[l]);
    }

    const PoolShape& s;
    const T* x;
    T* y;
    Where* where;
    int64_t lanes, width;  // of a row of results, filled up; of the columns of one remainder
    std::vector<T> image;
    std::vector<int32_t> column;  // the first inside of the image, of each window along a row
    std::vector<Window> windows;
};

template <typename T, typename Where>
void largest_of_rows(const PoolShape& s, const T* x, T* y, Where* where) {
    const int64_t parts = s.batch * s.channels, size = s.in[0] * s.in[1] * s.in[2] + s.out[0] * s.out[1] * s.out[2];
#pragma omp parallel if (parts * size > kParallelPoolElements)
    {
        MaximumOfRows<T, Where> images(s, x, y, where);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < parts; ++i) images.pool(i / s.channels, i % s.channels);
    }
}

template <typename T>
T larger(T v, T top) {
    if (std::numeric_limits<T>::is_integer) return std::max(v, top);  // a form that compilers have an instruction for
    return (v > top) | (v != v) ? v : top;
}

// The larger of each two numbers, or the first ones' copy. Loops of their own, because compilers leave them scalar where
// pointers may meet or a result stands in an array on the stack.
template <typename T>
void raise(const T* __restrict__ in, T* __restrict__ top, int64_t count, bool first) {
    if (first) {
        std::copy_n(in, count, top);
        return;
    }
#pragma omp simd
    for (int64_t l = 0; l < count; ++l) top[l] = larger(in[l], top[l]);
}

// Maxima alone, in lanes of all channels of a pixel, which stay in the nearest cache while the window passes. Threads have
// rows of the results, so that each walks along memory.
template <typename T>
void largest_of_channels(const PoolShape& s, const T* x, T* y) {
    const int64_t rows = s.batch * s.out[kDepth] * s.out[kHeight];
    const int64_t work = s.channels * (rows * s.out[kWidth] + s.batch * s.in[0] * s.in[1] * s.in[2]);
#pragma omp parallel if (work > kParallelPoolElements)
    {
        std::vector<const T*> lines;  // of the input, that the windows of one row of results have
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t n = row / (s.out[kDepth] * s.out[kHeight]);
            const int64_t d = row / s.out[kHeight] % s.out[kDepth], h = row % s.out[kHeight];
            lines.clear();
            for (int64_t k = 0; k < s.kernel[kDepth] * s.kernel[kHeight]; ++k) {
                const int64_t z = d * s.stride[kDepth] - s.pad[kDepth] + k / s.kernel[kHeight] * s.dilation[kDepth];
                const int64_t v = h * s.stride[kHeight] - s.pad[kHeight] + k % s.kernel[kHeight] * s.dilation[kHeight];
                if (z >= 0 && z < s.in[kDepth] && v >= 0 && v < s.in[kHeight])
                    lines.push_back(x + n * s.in_strides[0] + z * s.in_strides[2] + v * s.in_strides[3]);
            }
            T* top = y + n * s.out_strides[0] + d * s.out_strides[2] + h * s.out_strides[3];
            for (int64_t o = 0; o < s.out[kWidth]; ++o, top += s.out_strides[4]) {
                bool first = true;
                for (const T* line : lines)
                    for (int64_t k = 0; k < s.kernel[kWidth]; ++k) {
                        const int64_t w = o * s.stride[kWidth] - s.pad[kWidth] + k * s.dilation[kWidth];
                        if (w < 0 || w >= s.in[kWidth]) continue;
                        raise(line + w * s.in_strides[4], top, s.channels, first);
                        first = false;
                    }
                if (first) std::fill_n(top, s.channels, T(Maximum<T, uint8_t>::kLowest));
            }
        }
    }
}

template <typename T>
void clear(const PoolShape& s, const Part& part, T* dx) {
    T* image = dx + part.image * s.in_strides[0];
    const bool channels = along_channels(s);
    for (int64_t d = 0; d < s.in[kDepth]; ++d)
        for (int64_t h = 0; h < s.in[kHeight]; ++h)
            for (int64_t w = 0; w < s.in[kWidth]; ++w) {
                T* pixel = image + d * s.in_strides[2] + h * s.in_strides[3] + w * s.in_strides[4] + part.first * s.in_strides[1];
                if (channels) std::fill_n(pixel, part.last - part.first, T(0));
                else *pixel = T(0);
            }
}

// Elements of the window at result o along one dimension that lie inside of the input, or of the padded input.
int64_t elements(const PoolShape& s, int dimension, int64_t o, bool padding) {
    const int64_t low = padding ? -s.pad[dimension] : 0, high = s.in[dimension] + (padding ? s.pad_end[dimension] : 0);
    int64_t count = 0;
    for (int64_t k = 0; k < s.kernel[dimension]; ++k) {
        const int64_t i = o * s.stride[dimension] - s.pad[dimension] + k * s.dilation[dimension];
        count += i >= low && i < high;
    }
    return count;
}

// Whether lanes that compare, at each position of a window, are faster than following each result to its one element:
// lanes that fill vectors, windows of few positions (of 3x3 and 24 channels following takes a seventh of the time, of
// 64 channels as long).
bool compares_lanes(const PoolShape& s) {
    return along_channels(s) && s.where_strides[1] == 1 && s.channels % kChannelBlock == 0 &&
           s.kernel[kDepth] * s.kernel[kHeight] * s.kernel[kWidth] <= 9;
}

template <typename T, typename Where>
struct MaximumBackward {
    const T* dy;
    const Where* where;
    T* dx;
    Offsets offset{};

    void prepare(const PoolShape& s, const Part& part) { clear(s, part, dx); }

    void begin(const PoolShape&, const Lanes&, const int64_t (&)[3], const Offsets& start) { offset = start; }

    void window(int64_t k, const Range& range, int64_t in_offset) {
        T* out = dx + in_offset;
        const T* gradient = dy + offset.out;
        const Where* at = where + offset.where;
#pragma omp simd
        for (int64_t l = range.first; l < range.last; ++l) out[l] += at[l] == Where(k) ? gradient[l] : T(0);
    }

    void end() {}
};

// Each result knows the one element that it is from: an addition for each, innermost for the channels [first, last) of a
// part where these are dense in memory.
template <typename T, typename Where>
class Places {
public:
    Places(const PoolShape& shape, const T* gradient, const Where* positions, T* result)
        : s(shape), dy(gradient), where(positions), dx(result), channels(along_channels(shape)) {
        for (int64_t d = 0; d < s.kernel[kDepth]; ++d)
            for (int64_t h = 0; h < s.kernel[kHeight]; ++h)
                for (int64_t w = 0; w < s.kernel[kWidth]; ++w)
                    steps.push_back((d * s.dilation[kDepth] - s.pad[kDepth]) * s.in_strides[2] +
                                    (h * s.dilation[kHeight] - s.pad[kHeight]) * s.in_strides[3] +
                                    (w * s.dilation[kWidth] - s.pad[kWidth]) * s.in_strides[4]);
        for (int dimension = 0; dimension < 3; ++dimension)
            for (int64_t o = 0; o < s.out[dimension]; ++o) padding[dimension].push_back(elements(s, dimension, o, false) == 0);
    }

    void follow(const Part& part) const {
        const int64_t planes = channels ? 1 : part.last - part.first;
        for (int64_t c = part.first; c < part.first + planes; ++c)
            for (int64_t d = 0; d < s.out[kDepth]; ++d)
                for (int64_t h = 0; h < s.out[kHeight]; ++h) {
                    if (padding[kDepth][d] || padding[kHeight][h]) continue;
                    if (channels) row(part, d, h, part.last - part.first);
                    else row({part.image, c, c + 1}, d, h, std::integral_constant<int64_t, 1>());
                }
    }

private:
    // The results of one row, in so many lanes.
    template <typename Count>
    void row(const Part& part, int64_t d, int64_t h, Count lanes) const {
        const auto place = [&](const int64_t (&strides)[5], int64_t z, int64_t y) {
            return part.image * strides[0] + part.first * strides[1] + z * strides[2] + y * strides[3];
        };
        T* image = dx + place(s.in_strides, d * s.stride[kDepth], h * s.stride[kHeight]);
        const T* gradient = dy + place(s.out_strides, d, h);
        const Where* position = where + place(s.where_strides, d, h);
        const int64_t* step = steps.data();
        const int64_t across = s.where_strides[1], stride = s.stride[kWidth] * s.in_strides[4];
        for (int64_t w = 0; w < s.out[kWidth]; ++w) {
            T* pixel = image + w * stride;
            const T* in = gradient + w * s.out_strides[4];
            const Where* at = position + w * s.where_strides[4];
            if (padding[kWidth][w]) continue;
            for (int64_t l = 0; l < lanes; ++l) pixel[step[at[l * across]] + l] += in[l];
        }
    }

    const PoolShape& s;
    const T* dy;
    const Where* where;
    T* dx;
    bool channels;
    std::vector<int64_t> steps;    // by position in the window
    std::vector<char> padding[3];  // results along each dimension whose windows are of padding alone
};

// The divisor of each lane; the average of nothing is 0.
template <typename T>
struct Divisors {
    bool padding;
    std::vector<T> values;

    void set(const PoolShape& s, const Lanes& row, const int64_t (&o)[3]) {
        const bool channels = along_channels(s);
        const int64_t slice = elements(s, kDepth, o[kDepth], padding) * elements(s, kHeight, o[kHeight], padding);
        values.resize(row.count);
        for (int64_t l = 0; l < row.count; ++l) {
            if (channels && l > 0) { values[l] = values[0]; continue; }
            const int64_t count = slice * elements(s, kWidth, channels ? o[kWidth] : l, padding);
            values[l] = T(std::max<int64_t>(count, 1));
        }
    }
};

template <typename T>
struct Average {
    const T* x;
    T* y;
    Divisors<T> divisors;
    std::vector<T> sum;
    Lanes lanes{};
    int64_t offset = 0;

    void prepare(const PoolShape&, const Part&) {}

    void begin(const PoolShape& s, const Lanes& row, const int64_t (&o)[3], const Offsets& start) {
        lanes = row;
        offset = start.out;
        divisors.set(s, row, o);
        sum.assign(row.count, T(0));
    }

    void window(int64_t, const Range& range, int64_t in_offset) {
        const T* in = x + in_offset;
        T* total = sum.data();
        const int64_t step = lanes.in_step;
#pragma omp simd
        for (int64_t l = range.first; l < range.last; ++l) total[l] += in[l * step];
    }

    void end() {
        for (int64_t l = 0; l < lanes.count; ++l) y[offset + l * lanes.out_step] = sum[l] / divisors.values[l];
    }
};

template <typename T>
struct AverageBackward {
    const T* dy;
    T* dx;
    Divisors<T> divisors;
    std::vector<T> share;
    Lanes lanes{};

    void prepare(const PoolShape& s, const Part& part) { clear(s, part, dx); }

    void begin(const PoolShape& s, const Lanes& row, const int64_t (&o)[3], const Offsets& start) {
        lanes = row;
        divisors.set(s, row, o);
        share.resize(row.count);
        for (int64_t l = 0; l < row.count; ++l) share[l] = dy[start.out + l * row.out_step] / divisors.values[l];
    }

    void window(int64_t, const Range& range, int64_t in_offset) {
        T* out = dx + in_offset;
        const T* part = share.data();
        const int64_t step = lanes.in_step;
#pragma omp simd
        for (int64_t l = range.first; l < range.last; ++l) out[l * step] += part[l];
    }

    void end() {}
};

// Large windows of an image in rows: whole columns are reduced over the rows of a window, by vectors, and then what each
// window has of these.
bool by_columns(const PoolShape& s, bool of_one_row = false) {
    return !along_channels(s) && s.in_strides[4] == 1 && s.dilation[kWidth] == 1 && s.kernel[kWidth] >= 4 &&
           (s.kernel[kDepth] * s.kernel[kHeight] >= 4 || of_one_row) && s.out[kWidth] * s.kernel[kWidth] <= 2 * s.in[kWidth];
}

// Calls begin(d, h), then row(r, in) for each row r of the windows of one row of results that is inside of the image, then
// window(w, start, first, last, out, where) for each of these: it begins at column `start` and has [first, last).
template <typename T, typename Make>
void visit_columns(const PoolShape& s, const T* x, Make make) {
    const int64_t parts = s.batch * s.channels, size = s.in[0] * s.in[1] * s.in[2];
#pragma omp parallel if (parts * size > kParallelPoolElements)
    {
        auto visitor = make();
#pragma omp for schedule(static)
        for (int64_t i = 0; i < parts; ++i) {
            const int64_t n = i / s.channels, c = i % s.channels;
            const T* image = x + n * s.in_strides[0] + c * s.in_strides[1];
            for (int64_t o = 0; o < s.out[kDepth] * s.out[kHeight]; ++o) {
                const int64_t d = o / s.out[kHeight], h = o % s.out[kHeight];
                visitor.begin(d, h);
                for (int64_t r = 0; r < s.kernel[kDepth] * s.kernel[kHeight]; ++r) {
                    const int64_t z = d * s.stride[kDepth] - s.pad[kDepth] + r / s.kernel[kHeight] * s.dilation[kDepth];
                    const int64_t y = h * s.stride[kHeight] - s.pad[kHeight] + r % s.kernel[kHeight] * s.dilation[kHeight];
                    if (z < 0 || z >= s.in[kDepth] || y < 0 || y >= s.in[kHeight]) continue;
                    visitor.row(r, image + z * s.in_strides[2] + y * s.in_strides[3]);
                }
                for (int64_t w = 0; w < s.out[kWidth]; ++w) {
                    const int64_t start = w * s.stride[kWidth] - s.pad[kWidth];
                    const auto place = [&](const int64_t (&steps)[5]) {
                        return n * steps[0] + c * steps[1] + d * steps[2] + h * steps[3] + w * steps[4];
                    };
                    visitor.window(w, start, std::max<int64_t>(start, 0), std::min(start + s.kernel[kWidth], s.in[kWidth]),
                                   place(s.out_strides), place(s.where_strides));
                }
            }
        }
    }
}

template <typename T>
struct AverageColumns {
    const PoolShape& s;
    T* y;
    bool padding;
    std::vector<T> sum;
    std::vector<int64_t> widths;  // elements along each row of the windows
    int64_t slice = 0;

    AverageColumns(const PoolShape& shape, T* result, bool with_padding)
        : s(shape), y(result), padding(with_padding), sum(shape.in[kWidth]) {
        for (int64_t w = 0; w < s.out[kWidth]; ++w) widths.push_back(elements(s, kWidth, w, padding));
    }

    void begin(int64_t d, int64_t h) {
        slice = elements(s, kDepth, d, padding) * elements(s, kHeight, h, padding);
        std::fill(sum.begin(), sum.end(), T(0));
    }

    void row(int64_t, const T* in) {
        T* total = sum.data();
        const int64_t count = s.in[kWidth];
#pragma omp simd
        for (int64_t w = 0; w < count; ++w) total[w] += in[w];
    }

    void window(int64_t w, int64_t, int64_t first, int64_t last, int64_t out, int64_t) {
        T total = 0;
        const T* column = sum.data();
        if (last - first >= kLongRow) {
#pragma omp simd reduction(+ : total)
            for (int64_t i = first; i < last; ++i) total += column[i];
        } else {
            for (int64_t i = first; i < last; ++i) total += column[i];
        }
        y[out] = total / T(std::max<int64_t>(slice * widths[w], 1));
    }
};

template <typename T, typename Where>
struct MaximumColumns {
    static constexpr T kLowest = Maximum<T, Where>::kLowest;
    const PoolShape& s;
    T* y;
    Where* where;
    std::vector<T> best;
    std::vector<int32_t> rows;  // of the window, where each column has its maximum

    MaximumColumns(const PoolShape& shape, T* result, Where* positions)
        : s(shape), y(result), where(positions), best(shape.in[kWidth]), rows(shape.in[kWidth]) {}

    void begin(int64_t, int64_t) {
        std::fill(best.begin(), best.end(), T(kLowest));
        std::fill(rows.begin(), rows.end(), -1);
    }

    void row(int64_t r, const T* in) {
        T* top = best.data();
        int32_t* at = rows.data();
        const int64_t count = s.in[kWidth];
#pragma omp simd
        for (int64_t w = 0; w < count; ++w) {
            const T v = in[w];
            const bool better = v > top[w] || v != v || at[w] < 0;
            top[w] = better ? v : top[w];
            at[w] = better ? int32_t(r) : at[w];
        }
    }

    // The first of equal maxima in the order of rows, the last of what is no number: as one after the other.
    void window(int64_t, int64_t start, int64_t first, int64_t last, int64_t out, int64_t place) {
        T top = kLowest;
        int64_t found = -1;
        for (int64_t i = first; i < last; ++i) {
            if (rows[i] < 0) continue;
            const T v = best[i];
            const int64_t position = rows[i] * s.kernel[kWidth] + i - start;
            const bool better = v != v ? top == top || position > found : v > top || (v == top && position < found);
            if (found >= 0 && !better) continue;
            top = v;
            found = position;
        }
        y[out] = top;
        if (where) where[place] = Where(std::max<int64_t>(found, 0));
    }
};

}  // namespace

template <typename T, typename Where>
void max_pool(const PoolShape& shape, const T* x, T* y, Where* where) {
    if (by_columns(shape)) return visit_columns(shape, x, [&] { return MaximumColumns<T, Where>(shape, y, where); });
    if (!where && along_channels(shape)) return largest_of_channels(shape, x, y);
    if (!along_channels(shape)) return largest_of_rows(shape, x, y, where);
    visit(shape, [&] { return Maximum<T, Where>{x, y, where, {}, {}}; });
}

template <typename T, typename Where>
void max_pool_backward(const PoolShape& shape, const T* dy, const Where* where, T* dx) {
    if (compares_lanes(shape)) return visit(shape, [&] { return MaximumBackward<T, Where>{dy, where, dx}; });
    const int64_t block = along_channels(shape) ? kChannelBlock : 1, blocks = (shape.channels + block - 1) / block;
    const int64_t parts = shape.batch * blocks, size = shape.channels * shape.in[0] * shape.in[1] * shape.in[2];
    const Places<T, Where> places(shape, dy, where, dx);
#pragma omp parallel for schedule(static) if (shape.batch * size > kParallelPoolElements)
    for (int64_t i = 0; i < parts; ++i) {
        const int64_t first = i % blocks * block;
        const Part part{i / blocks, first, std::min(first + block, shape.channels)};
        clear(shape, part, dx);
        places.follow(part);
    }
}

template <typename T>
void average_pool(const PoolShape& shape, const T* x, T* y, bool padding) {
    if (by_columns(shape, shape.kernel[kWidth] >= kLongRow))
        return visit_columns(shape, x, [&] { return AverageColumns<T>(shape, y, padding); });
    visit(shape, [&] { return Average<T>{x, y, {padding, {}}, {}}; });
}

template <typename T>
void average_pool_backward(const PoolShape& shape, const T* dy, T* dx, bool padding) {
    visit(shape, [&] { return AverageBackward<T>{dy, dx, {padding, {}}, {}}; });
}

using T = DACEOPT_T;
template void max_pool(const PoolShape&, const T*, T*, uint8_t*);
template void max_pool(const PoolShape&, const T*, T*, int32_t*);
template void max_pool_backward(const PoolShape&, const T*, const uint8_t*, T*);
template void max_pool_backward(const PoolShape&, const T*, const int32_t*, T*);
template void average_pool(const PoolShape&, const T*, T*, bool);
template void average_pool_backward(const PoolShape&, const T*, T*, bool);

}  // namespace daceopt
