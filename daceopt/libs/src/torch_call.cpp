// Operators of torch through its dispatcher, by their schemas: without Python, unless an operator is written in it.
#include "daceopt/torch_call.h"

#include "daceopt/torch_tensors.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>

namespace daceopt {
namespace {

// A tensor to be read. Torch has no negative strides: such an array is turned round, into a copy.
Tensor readable(Where where, DeviceArray array) {
    std::vector<int64_t> turned;
    int64_t elements = 1;
    for (const int64_t extent : array.shape) elements *= extent;
    const int64_t bytes = c10::elementSize(number(array.number));
    for (size_t axis = 0; axis < array.strides.size(); ++axis) {
        int64_t& stride = array.strides[axis];
        if (stride >= 0) continue;
        if (elements) array.data = static_cast<const char*>(array.data) + (array.shape[axis] - 1) * stride * bytes;
        stride = -stride;
        turned.push_back(int64_t(axis));
    }
    const Tensor found = tensor(where, array);
    return turned.empty() ? found : found.flip(turned);
}

bool is_laid_out(const Tensor& tensor, const std::vector<int64_t>& order) {
    int64_t step = 1;
    for (size_t k = order.size(); k-- > 0;) {
        const int64_t extent = tensor.size(order[k]);
        if (extent != 1 && tensor.stride(order[k]) != step) return false;
        step *= extent;
    }
    return true;
}

Tensor laid_out(const Tensor& tensor, const std::vector<int64_t>& order) {
    if (is_laid_out(tensor, order)) return tensor;
    std::vector<int64_t> inverse(order.size());
    for (size_t k = 0; k < order.size(); ++k) inverse[order[k]] = int64_t(k);
    return tensor.permute(order).contiguous().permute(inverse);
}

// The complex tensor over an array of both parts; undefined where its strides are none of complex numbers.
Tensor complex_over(Where where, const DeviceArray& array) {
    const size_t rank = array.shape.size() - 1;
    bool pairs = array.strides[rank] == 1;
    std::vector<int64_t> strides(rank);
    for (size_t axis = 0; axis < rank; ++axis) {
        pairs = pairs && array.strides[axis] >= 0 && array.strides[axis] % 2 == 0;
        strides[axis] = array.strides[axis] / 2;
    }
    if (!pairs) return {};
    return over(where, array.data, complex_of(number(array.number)), at::IntArrayRef(array.shape.data(), rank), strides);
}

Tensor complex_copy(const Tensor& parts) {
    if (parts.numel()) return at::view_as_complex(parts.contiguous());
    const auto shape = parts.sizes().slice(0, parts.dim() - 1);  // strides of no elements say nothing
    return at::empty(shape, parts.options().dtype(complex_of(parts.scalar_type())));
}

Tensor operand(Where where, const CallOperand& given) {
    Tensor found;
    if (given.is_complex) found = complex_over(where, given.array);
    if (!found.defined()) found = readable(where, given.array);
    if (given.is_complex && !found.is_complex()) found = complex_copy(found);
    return given.order.empty() ? found : laid_out(found, given.order);
}

int64_t named(const std::string& name) {
    static const std::unordered_map<std::string, int64_t> others{
        {"strided", int64_t(at::kStrided)},
        {"contiguous_format", int64_t(at::MemoryFormat::Contiguous)},
        {"preserve_format", int64_t(at::MemoryFormat::Preserve)},
        {"channels_last", int64_t(at::MemoryFormat::ChannelsLast)},
        {"channels_last_3d", int64_t(at::MemoryFormat::ChannelsLast3d)},
    };
    const auto& types = c10::getStringToDtypeMap();
    if (const auto found = types.find(name); found != types.end()) return int64_t(found->second);
    if (const auto found = others.find(name); found != others.end()) return found->second;
    throw std::runtime_error("torch has no " + name + " that calls may name");
}

// Arguments as values of torch, of the types that a schema asks for.
struct Arguments {
    Where where;
    const std::vector<int64_t>& sizes;
    std::vector<Tensor> tensors;

    c10::IValue of(const CallValue& given, const c10::TypePtr& type, std::optional<int32_t> repeated) const {
        if (const auto optional = type->cast<c10::OptionalType>()) {
            if (given.kind == CallValue::kNone) return {};
            return of(given, optional->getElementType(), repeated);
        }
        if (const auto list = type->cast<c10::ListType>()) return list_of(given, list->getElementType(), repeated);
        switch (given.kind) {
            case CallValue::kBool: return number_of(type, given.integer != 0);
            case CallValue::kInteger: return number_of(type, given.integer);
            case CallValue::kSize: return number_of(type, sizes.at(given.integer));
            case CallValue::kFloat: return number_of(type, given.real);
            case CallValue::kItem: return item_of(type, tensors.at(given.integer).item());
            case CallValue::kComplex: return number_of(type, c10::complex<double>(given.real, given.imaginary));
            case CallValue::kText: return std::string(given.text);
            case CallValue::kName: return named(given.text);
            case CallValue::kDevice: return device(where);
            case CallValue::kArray: return tensors.at(given.integer);
            case CallValue::kList: throw std::runtime_error("a list where " + type->str() + " is expected");
            case CallValue::kNone: break;
        }
        // what is absent where it must not be is an undefined tensor
        return type->kind() == c10::TypeKind::TensorType ? c10::IValue(Tensor()) : c10::IValue();
    }

private:
    c10::IValue list_of(const CallValue& given, const c10::TypePtr& type, std::optional<int32_t> repeated) const {
        // extents are lists of plain numbers, whatever symbols a schema allows
        const bool extents = type->kind() == c10::TypeKind::SymIntType;
        c10::impl::GenericList made(extents ? c10::TypePtr(c10::IntType::get()) : type);
        if (given.kind == CallValue::kList)
            for (const CallValue& item : given.items) made.push_back(of(item, type, std::nullopt));
        else  // one number for all axes
            for (int32_t k = 0; k < repeated.value_or(1); ++k) made.push_back(of(given, type, std::nullopt));
        return made;
    }

    template <typename T>
    static c10::IValue number_of(const c10::TypePtr& type, T value) {
        switch (type->kind()) {
            case c10::TypeKind::TensorType: return at::native::wrapped_scalar_tensor(value);  // as from Python
            case c10::TypeKind::ComplexType: return c10::complex<double>(value);
            default: break;
        }
        if constexpr (std::is_arithmetic_v<T>) {
            switch (type->kind()) {
                case c10::TypeKind::FloatType:
                case c10::TypeKind::SymFloatType: return double(value);
                case c10::TypeKind::IntType:
                case c10::TypeKind::SymIntType: return int64_t(value);
                case c10::TypeKind::BoolType:
                case c10::TypeKind::SymBoolType: return bool(value);
                default: break;
            }
        }
        return value;
    }

    static c10::IValue item_of(const c10::TypePtr& type, const at::Scalar& item) {
        if (item.isBoolean()) return number_of(type, item.toBool());
        if (item.isIntegral(false)) return number_of(type, item.toLong());
        if (item.isComplex()) return number_of(type, item.toComplexDouble());
        return number_of(type, item.toDouble());
    }
};

std::vector<Tensor> returned(const torch::jit::Stack& stack) {
    std::vector<Tensor> found;
    const auto add = [&](const c10::IValue& value) { found.push_back(value.isTensor() ? value.toTensor() : Tensor()); };
    if (stack.size() == 1 && stack[0].isList())
        for (const c10::IValue& value : stack[0].toListRef()) add(value);
    else
        for (const c10::IValue& value : stack) add(value);
    return found;
}

// Small results of the same layout without an operator's overhead.
void copy(Where where, const Tensor& to, const Tensor& from) {
    constexpr size_t small = 1 << 16;
    const bool alike = where == Where::kHost && to.scalar_type() == from.scalar_type() && to.nbytes() <= small &&
                       to.is_contiguous() && from.is_contiguous() && !from.is_conj() && !from.is_neg() &&
                       !from._is_zerotensor() && from.layout() == at::kStrided && from.device().is_cpu();
    if (!alike) to.copy_(from);
    else if (to.nbytes()) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
}

void store(Where where, const CallResult& result, Tensor value) {
    Tensor found;
    if (result.is_complex) found = complex_over(where, result.array);
    if (!found.defined()) found = tensor(where, result.array);
    if (result.is_complex && !found.is_complex()) value = at::view_as_real(value.resolve_conj().resolve_neg());
    if (value.sizes() != found.sizes()) {
        std::ostringstream text;
        text << "ATen returned shape " << value.sizes() << "; expected " << found.sizes()
             << ", which its shape rule promised";
        throw std::runtime_error(text.str());
    }
    copy(where, found, value);
}

}  // namespace

void torch_call(Where where, const char* name, const char* overload, const std::vector<CallValue>& arguments,
                const std::vector<int64_t>& sizes, const std::vector<CallOperand>& operands,
                const std::vector<CallResult>& results) {
    const Plain plain;
    try {
        // looked up in each call: one that a user has registered anew is another
        const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
        Arguments given{where, sizes, {}};
        for (const CallOperand& one : operands) given.tensors.push_back(operand(where, one));
        const std::vector<c10::Argument>& formal = handle.schema().arguments();
        if (formal.size() != arguments.size()) throw std::runtime_error("another schema than when the call was compiled");
        torch::jit::Stack stack;
        for (size_t k = 0; k < formal.size(); ++k)
            stack.push_back(given.of(arguments[k], formal[k].type(), formal[k].N()));
        handle.callBoxed(stack);
        const std::vector<Tensor> found = returned(stack);
        for (const CallResult& result : results) store(where, result, found.at(result.position));
    } catch (const c10::Error& error) {
        throw std::runtime_error(std::string(name) + ": " + error.what_without_backtrace());
    }
}

void torch_refusal(const char* message) { throw std::runtime_error(message); }

}  // namespace daceopt
