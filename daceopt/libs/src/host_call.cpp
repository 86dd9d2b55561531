// Calls into Python. The interpreter is found in the process, so that no Python headers or libraries are needed to build.
#include <dlfcn.h>

#include "daceopt/host_call.h"

namespace daceopt {
namespace {

struct Row {  // daceopt.libs.host.Operand
    void* data;
    const char* dtype;
    int64_t rank;
    const int64_t *shape, *strides;
};

using Dispatch = int (*)(const char*, const char*, const Row*, int64_t, int64_t, char*);

template <typename F>
F python(const char* name) {
    return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

// Asks daceopt.libs.host for its dispatcher; null when this is no Python process or the module cannot be imported.
Dispatch find_dispatch() {
    const auto lock = python<int (*)()>("PyGILState_Ensure");
    const auto unlock = python<void (*)(int)>("PyGILState_Release");
    const auto import_module = python<void* (*)(const char*)>("PyImport_ImportModule");
    const auto call = python<void* (*)(void*, const char*, const char*, ...)>("PyObject_CallMethod");
    const auto to_address = python<void* (*)(void*)>("PyLong_AsVoidPtr");
    const auto clear_error = python<void (*)()>("PyErr_Clear");
    if (!lock || !unlock || !import_module || !call || !to_address || !clear_error) return nullptr;
    const int state = lock();
    void* module = import_module("daceopt.libs.host");
    void* address = module ? call(module, "dispatcher_address", nullptr) : nullptr;
    void* found = address ? to_address(address) : nullptr;  // both objects live as long as the process
    if (!found) clear_error();
    unlock(state);
    return reinterpret_cast<Dispatch>(found);
}

}  // namespace

void host_call(const char* callback, const char* payload, const std::vector<HostOperand>& operands, int64_t inputs) {
    static const Dispatch dispatch = find_dispatch();
    if (!dispatch) return fail("HostCall", "cannot import daceopt.libs.host in this process");
    std::vector<Row> rows;
    for (const HostOperand& operand : operands)
        rows.push_back({operand.data, operand.dtype, int64_t(operand.shape.size()), operand.shape.data(), operand.strides.data()});
    char message[sizeof status.message] = {0};
    if (dispatch(callback, payload, rows.data(), inputs, int64_t(rows.size()) - inputs, message)) fail(callback, message);
}

}  // namespace daceopt
