// Max and average pooling over any strides, up to three spatial dimensions. Compiled in libs/src/pool.cpp.
#pragma once
#include <cstdint>

#include "daceopt/status.h"

namespace daceopt {

// Spatial triples are filled with extent 1 (kernel 1, stride 1, no padding) in front. Strides: batch, channel, then spatial.
struct PoolShape {
    int64_t batch, channels;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3], pad_end[3];
    int64_t in_strides[5], out_strides[5], where_strides[5];  // the last are the workspace's
};

// `where` (may be null) receives the position of each maximum within its window. NaN is a maximum.
template <typename T, typename Where>
void max_pool(const PoolShape& shape, const T* x, T* y, Where* where);
template <typename T, typename Where>
void max_pool_backward(const PoolShape& shape, const T* dy, const Where* where, T* dx);
// The divisor counts the window's elements inside of the input, or with `padding` also those in the padding.
template <typename T>
void average_pool(const PoolShape& shape, const T* x, T* y, bool padding);
template <typename T>
void average_pool_backward(const PoolShape& shape, const T* dy, T* dx, bool padding);

}  // namespace daceopt
