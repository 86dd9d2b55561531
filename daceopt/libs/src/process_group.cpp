// The process group is found by its name in the registry that torch.distributed keeps; works are those of its backend.
#include "daceopt/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "daceopt/status.h"

namespace daceopt {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

struct Pending {
    Work work;
    std::string label;
    std::vector<at::Tensor> own, all;  // keep their memory until the work is done; `all` has one for each rank
};

constexpr int64_t ended = -1;  // what a rank tells that has no more batches (ir/nodes/collective.py)

// Of the run in this thread.
thread_local std::vector<Pending> pending;

// Waits for what may still write memory of the run; its errors are not the first one.
void settle_all() {
    for (auto& one : pending) {
        try {
            if (one.work) one.work->wait();
        } catch (...) {
        }
    }
    pending.clear();
    at_end = nullptr;
}

[[noreturn]] void failed(const std::string& label, const char* why) { throw std::runtime_error("exchange: " + label + ": " + why); }

// Lines behind the first are a stack of the collective library.
std::string first_line(const char* text) {
    const std::string all = text;
    return all.substr(0, all.find('\n'));
}

int64_t added(Pending one) {
    at_end = settle_all;
    pending.push_back(std::move(one));
    return static_cast<int64_t>(pending.size());
}

c10::intrusive_ptr<c10d::Backend> backend_of(const char* group) {
    return c10d::resolve_process_group(group)->getBackend(c10::DeviceType::CPU);
}

at::ScalarType type_of(Reduced type) {
    switch (type) {
        case Reduced::kFloat: return at::kFloat;
        case Reduced::kDouble: return at::kDouble;
        case Reduced::kHalf: return at::kHalf;
        default: return at::kBFloat16;
    }
}

Pending& waited(int64_t handle) {
    Pending& one = pending.at(static_cast<size_t>(handle - 1));
    try {
        one.work->wait();
    } catch (const std::exception& error) {
        one.work.reset();
        failed(one.label, first_line(error.what()).c_str());
    }
    one.work.reset();
    return one;
}

template <typename Start>
int64_t started(Pending one, Start start) {
    try {
        one.work = start(one);
    } catch (const std::exception& error) {
        failed(one.label, first_line(error.what()).c_str());
    }
    return added(std::move(one));
}

}  // namespace

int64_t all_reduce_start(const char* group, const char* label, void* data, int64_t count, Reduced type) {
    Pending one{{}, label, {at::from_blob(data, {count}, at::TensorOptions().dtype(type_of(type)))}, {}};
    return started(std::move(one), [&](Pending& p) { return backend_of(group)->allreduce(p.own); });
}

void all_reduce_wait(int64_t handle) { waited(handle).own.clear(); }

int64_t agreement_start(const char* group, int64_t sequence) {
    at::Tensor mine = at::empty({1}, at::kLong);
    mine.data_ptr<int64_t>()[0] = sequence;
    return started({{}, "agreement on what is exchanged", {mine}, {}}, [&](Pending& p) {
        const auto backend = backend_of(group);
        for (int rank = 0; rank < backend->getSize(); ++rank) p.all.push_back(at::empty({1}, at::kLong));
        std::vector<std::vector<at::Tensor>> received{p.all};
        return backend->allgather(received, p.own);
    });
}

void agreement_wait(int64_t handle, int64_t sequence) {
    const Pending& one = waited(handle);
    for (size_t rank = 0; rank < one.all.size(); ++rank) {
        const int64_t told = one.all[rank].data_ptr<int64_t>()[0];
        if (told != sequence && told != ended)
            failed("rank " + std::to_string(rank) + " is about to exchange other gradients than this rank",
                   "expected the same model, strategy and branches on all ranks");
    }
}

}  // namespace daceopt
