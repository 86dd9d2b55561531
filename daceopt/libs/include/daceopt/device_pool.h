// Max and average pooling on a device, as in pool.h. Compiled in libs/src/device_pool.cpp.
#pragma once
#include "daceopt/pool.h"

namespace daceopt {

template <typename T, typename Where>
void device_max_pool(void* stream, const PoolShape& shape, const T* x, T* y, Where* where);
template <typename T, typename Where>
void device_max_pool_backward(void* stream, const PoolShape& shape, const T* dy, const Where* where, T* dx);
template <typename T>
void device_average_pool(void* stream, const PoolShape& shape, const T* x, T* y, bool padding);
template <typename T>
void device_average_pool_backward(void* stream, const PoolShape& shape, const T* dy, T* dx, bool padding);

}  // namespace daceopt
