// Functions that torch exports, found in the process: programs are not linked against it, and may run without it.
#pragma once
#include <dlfcn.h>

namespace daceopt {

// Null where torch is not loaded, or has no such function.
template <typename Function>
Function torch_symbol(const char* name) {
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Function>(torch ? dlsym(torch, name) : nullptr);
}

}  // namespace daceopt
