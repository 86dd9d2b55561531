// Operators of torch by their names, on arrays of any device that torch knows.
#pragma once
#include "daceopt/torch_device.h"

namespace daceopt {

// A value among the arguments of a call.
struct CallValue {
    enum Kind : int8_t {
        kNone,
        kBool,     // integer
        kInteger,  // integer
        kFloat,    // real
        kComplex,  // real, imaginary
        kText,     // text
        kName,     // text: an element type, a layout or an order of axes, in torch's words
        kDevice,   // where the arrays are
        kArray,    // integer: which array
        kItem,     // integer: which array, whose only element is read: the host waits for it
        kSize,     // integer: which size
        kList,     // items
    } kind = kNone;
    int64_t integer = 0;
    double real = 0, imaginary = 0;
    const char* text = "";
    std::vector<CallValue> items = {};
};

// An operand: `order` are its axes from the outermost in memory, as the operator gets it, where there are any.
struct CallOperand {
    DeviceArray array;
    bool is_complex;  // both parts are along the last axis
    std::vector<int64_t> order = {};
};

struct CallResult {
    int64_t position;  // among the operator's results
    bool is_complex;
    DeviceArray array;
};

// The results of the operator, copied to where they belong. Arguments stand in the order of its schema. Raises
// std::runtime_error for what torch refuses, and for other shapes than those of the arrays.
void torch_call(Where where, const char* name, const char* overload, const std::vector<CallValue>& arguments,
                const std::vector<int64_t>& sizes, const std::vector<CallOperand>& operands,
                const std::vector<CallResult>& results);

// Raises std::runtime_error: what a program does that computes what nobody can.
[[noreturn]] void torch_refusal(const char* message);

}  // namespace daceopt
