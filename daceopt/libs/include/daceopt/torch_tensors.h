// Our arrays as tensors of torch, and what its operators are called in. For sources that torch's headers are there for.
#pragma once
#include "daceopt/torch_device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace daceopt {

using at::Tensor;

// What stands between a caller and kernels: autocast, modes of Python, functionalization, transforms of torch.func.
constexpr c10::DispatchKeySet caller = c10::autocast_dispatch_keyset | c10::DispatchKeySet({
    c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode,
    c10::DispatchKey::FuncTorchVmapMode,
});

// No autograd, and nothing else of the caller's: types and gradients have been decided.
struct Plain {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    c10::AutoGradMode no_grad{false};
    c10::impl::ExcludeDispatchKeyGuard no_caller{caller};
};

inline at::ScalarType number(Number number) {
    switch (number) {
        case Number::kFloat32: return at::kFloat;
        case Number::kFloat64: return at::kDouble;
        case Number::kFloat16: return at::kHalf;
        case Number::kBfloat16: return at::kBFloat16;
        case Number::kFloat8E4m3fn: return at::kFloat8_e4m3fn;
        case Number::kFloat8E4m3fnuz: return at::kFloat8_e4m3fnuz;
        case Number::kFloat8E5m2: return at::kFloat8_e5m2;
        case Number::kFloat8E5m2fnuz: return at::kFloat8_e5m2fnuz;
        case Number::kInt8: return at::kChar;
        case Number::kInt16: return at::kShort;
        case Number::kInt32: return at::kInt;
        case Number::kInt64: return at::kLong;
        case Number::kUint8: return at::kByte;
        case Number::kUint16: return at::kUInt16;
        case Number::kUint32: return at::kUInt32;
        case Number::kUint64: return at::kUInt64;
        case Number::kBool: return at::kBool;
    }
    return at::kFloat;
}

inline at::ScalarType complex_of(at::ScalarType part) {
    return part == at::kDouble ? at::kComplexDouble : part == at::kHalf ? at::kComplexHalf : at::kComplexFloat;
}

inline at::Device device(Where where) {
    if (where == Where::kHost) return at::Device(at::kCPU);
    return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();  // the current one, which the caller has set
}

inline Tensor over(Where where, const void* data, at::ScalarType dtype, at::IntArrayRef shape, at::IntArrayRef strides) {
    const at::Device place = device(where);
    return at::for_blob(const_cast<void*>(data), shape)
        .strides(strides)
        .options(at::TensorOptions().dtype(dtype).device(place))
        .target_device(place)
        .make_tensor();
}

inline Tensor tensor(Where where, const DeviceArray& a) {
    return over(where, a.data, number(a.number), a.shape, a.strides);
}

inline std::optional<Tensor> optional(Where where, const DeviceArray& a) {
    if (!a.data) return std::nullopt;
    return tensor(where, a);
}

}  // namespace daceopt
