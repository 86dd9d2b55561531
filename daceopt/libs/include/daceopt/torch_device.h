// Library nodes by torch's own operators, on arrays of any device that torch knows: calls run on torch's current stream.
#pragma once
#include <cstdint>
#include <vector>

namespace daceopt {

enum class Number : int8_t {
    kFloat32, kFloat64, kFloat16, kBfloat16, kFloat8E4m3fn, kFloat8E4m3fnuz, kFloat8E5m2, kFloat8E5m2fnuz,
    kInt8, kInt16, kInt32, kInt64, kUint8, kUint16, kUint32, kUint64, kBool,
};
enum class Where : int8_t { kHost, kCuda };

// An array in memory; without an address there is none.
struct DeviceArray {
    const void* data = nullptr;
    Number number = Number::kFloat32;
    std::vector<int64_t> shape, strides;
};

// Y = activation(alpha * A @ B + Bias + C)
struct DeviceProduct {
    Where where;
    double alpha;
    bool relu;
    DeviceArray a, b, bias, c, y;
};

struct DeviceWindow {
    std::vector<int64_t> strides, dilations, begin, end;
    int64_t group;
};

void device_product(const DeviceProduct& product);

// Y = activation(conv(X, W) + B + Z), and its gradients
void device_convolution(Where where, const DeviceWindow& window, bool relu, const DeviceArray& x, const DeviceArray& w,
                        const DeviceArray& b, const DeviceArray& z, const DeviceArray& y);
void device_convolution_data(Where where, const DeviceWindow& window, const DeviceArray& dy, const DeviceArray& w,
                             const DeviceArray& dx);
void device_convolution_weights(Where where, const DeviceWindow& window, const DeviceArray& x, const DeviceArray& dy,
                                const DeviceArray& dw);

// dW = 0; dW[Index[i]] += dY[i], in an order that is always the same; `sure`: others look at the indices
void device_index_add(Where where, const DeviceArray& index, const DeviceArray& dy, const DeviceArray& dw, bool sure);

}  // namespace daceopt
