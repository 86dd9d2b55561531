// Calls into Python by the name of a function. Compiled in libs/src/host_call.cpp.
#pragma once
#include <cstdint>
#include <vector>

#include "daceopt/status.h"

namespace daceopt {

struct HostOperand {  // dtype: its name in NumPy or ml_dtypes; sizes and strides in elements
    void* data;
    const char* dtype;
    std::vector<int64_t> shape, strides;
};

// Calls the Python function `callback` ("package.module:function") with the payload, the first `inputs` operands and the rest.
// Takes the interpreter's lock; an exception is reported to `status`.
void host_call(const char* callback, const char* payload, const std::vector<HostOperand>& operands, int64_t inputs);

}  // namespace daceopt
