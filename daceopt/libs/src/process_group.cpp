// The process group is found by its name in the registry that torch.distributed keeps; works are those of its backend.
#include "daceopt/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cstring>
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
    std::vector<Work> works;
    std::string label;
    std::vector<at::Tensor> own, all;  // keep their memory until the work is done; `all` has one for each rank
};

constexpr int64_t ended = -1;  // what a rank tells that has no more batches (ir/nodes/collective.py)

// Of the run in this thread.
thread_local std::vector<Pending> pending;

// Waits for what may still write memory of the run; its errors are not the first one.
void settle_all() {
    for (auto& one : pending) {
        for (auto& work : one.works) {
            try {
                work->wait();
            } catch (...) {
            }
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
    while (!one.works.empty()) {
        const Work work = one.works.back();
        one.works.pop_back();
        try {
            work->wait();
        } catch (const std::exception& error) {
            failed(one.label, first_line(error.what()).c_str());
        }
    }
    return one;
}

// `start` leaves its works in what it is given: those before one that fails are settled with the rest.
template <typename Start>
int64_t started(Pending one, Start start) {
    const int64_t handle = added(std::move(one));
    try {
        start(pending.back());
    } catch (const std::exception& error) {
        failed(pending.back().label, first_line(error.what()).c_str());
    }
    return handle;
}

at::Tensor over(void* data, at::IntArrayRef shape, Reduced type) {
    return at::from_blob(data, shape, at::TensorOptions().dtype(type_of(type)));
}

// gloo's own reduce-scatter sums everything on all ranks, in a copy; and its all-gather goes through copies, too.
bool is_gloo(const c10::intrusive_ptr<c10d::Backend>& backend) { return backend->getBackendName() == "gloo"; }

}  // namespace

int64_t all_reduce_start(const char* group, const char* label, void* data, int64_t count, Reduced type) {
    return started({{}, label, {over(data, {count}, type)}, {}},
                   [&](Pending& p) { p.works.push_back(backend_of(group)->allreduce(p.own)); });
}

void all_reduce_wait(int64_t handle) { waited(handle).own.clear(); }

int64_t reduce_scatter_start(const char* group, const char* label, void* data, void* received, int64_t count, Reduced type) {
    return started({{}, label, {}, {}}, [&](Pending& p) {
        const auto backend = backend_of(group);
        const int64_t world = backend->getSize();
        at::Tensor rows = over(data, {world, count}, type);
        p.own = {over(received, {is_gloo(backend) ? world : 1, count}, type)};  // what the wait adds up
        p.all = {rows};
        if (is_gloo(backend)) {
            std::vector<int64_t> equal;
            p.works.push_back(backend->alltoall_base(p.own[0], rows, equal, equal));
        } else {
            p.works.push_back(backend->_reduce_scatter_base(p.own[0], rows));
        }
    });
}

void reduce_scatter_wait(int64_t handle, void* own) {
    Pending& one = waited(handle);
    const at::Tensor& rows = one.own[0];
    at::Tensor sum = at::from_blob(own, {rows.size(1)}, rows.options());
    at::sum_out(sum, rows, at::IntArrayRef{0});
    one.own.clear();
    one.all.clear();
}

int64_t all_gather_start(const char* group, const char* label, const void* own, void* gathered, int64_t count, Reduced type) {
    return started({{}, label, {}, {}}, [&](Pending& p) {
        const auto backend = backend_of(group);
        at::Tensor whole = over(gathered, {backend->getSize(), count}, type);
        for (int rank = 0; rank < backend->getSize(); ++rank) p.own.push_back(whole[rank]);
        at::Tensor& mine = p.own[static_cast<size_t>(backend->getRank())];
        std::memcpy(mine.data_ptr(), own, mine.nbytes());
        if (!is_gloo(backend)) {
            p.works.push_back(backend->_allgather_base(whole, mine));
            return;
        }
        for (int rank = 0; rank < backend->getSize(); ++rank) {
            std::vector<at::Tensor> row{p.own[static_cast<size_t>(rank)]};
            c10d::BroadcastOptions options;
            options.rootRank = rank;
            p.works.push_back(backend->broadcast(row, options));
        }
    });
}

void all_gather_wait(int64_t handle) { waited(handle).own.clear(); }

void own_shard(const char* group, const void* data, int64_t total, void* own, int64_t count, int64_t width) {
    const int64_t first = std::min(backend_of(group)->getRank() * count, total), held = std::min(count, total - first);
    std::memcpy(own, static_cast<const char*>(data) + first * width, held * width);
    std::memset(static_cast<char*>(own) + held * width, 0, (count - held) * width);
}

void into_shards(const void* data, int64_t total, void* rows, int64_t world, int64_t stride, int64_t count, int64_t width) {
    char* row = static_cast<char*>(rows);
    for (int64_t first = 0; first < world * count; first += count, row += stride * width) {
        const int64_t held = std::clamp(total - first, int64_t(0), count);
        if (held > 0) std::memcpy(row, static_cast<const char*>(data) + first * width, held * width);
        std::memset(row + held * width, 0, (count - held) * width);
    }
}

void unshard(const void* rows, int64_t stride, int64_t count, void* data, int64_t total, int64_t width) {
    const char* row = static_cast<const char*>(rows);
    for (int64_t first = 0; first < total; first += count, row += stride * width)
        std::memcpy(static_cast<char*>(data) + first * width, row, std::min(count, total - first) * width);
}

int64_t agreement_start(const char* group, int64_t sequence) {
    at::Tensor mine = at::empty({1}, at::kLong);
    mine.data_ptr<int64_t>()[0] = sequence;
    return started({{}, "agreement on what is exchanged", {mine}, {}}, [&](Pending& p) {
        const auto backend = backend_of(group);
        for (int rank = 0; rank < backend->getSize(); ++rank) p.all.push_back(at::empty({1}, at::kLong));
        std::vector<std::vector<at::Tensor>> received{p.all};
        p.works.push_back(backend->allgather(received, p.own));
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
