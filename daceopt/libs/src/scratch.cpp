// Memory of a thread that lives from call to call.
#include "daceopt/scratch.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace daceopt::detail {
namespace {

// Grows, and is never smaller than the last call's.
class Block {
public:
    ~Block() { release(); }

    void release() {
        std::free(std::exchange(data_, nullptr));
        size_ = 0;
    }

    void* get(size_t bytes) {
        if (bytes <= size_) return data_;
        release();
        const size_t whole = (bytes + 4095) / 4096 * 4096;
        data_ = std::aligned_alloc(64, whole);
        size_ = data_ ? whole : 0;
        return data_;
    }

private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

std::array<Block, static_cast<size_t>(Purpose::kCount)>& blocks() {
    thread_local std::array<Block, static_cast<size_t>(Purpose::kCount)> instance;
    return instance;
}

void* own(int purpose, size_t bytes) { return blocks()[purpose].get(bytes); }

using Source = void* (*)(int, size_t);
std::atomic<Source> source{own};

}  // namespace

void* scratch(Purpose purpose, size_t bytes) {
    void* found = source.load(std::memory_order_relaxed)(static_cast<int>(purpose), bytes);
    if (bytes && !found) throw std::bad_alloc();
    return found;
}

void release_scratch() {
    for (Block& block : blocks()) block.release();
}

}  // namespace daceopt::detail

// Has this library take its memory where `other` came from: another library's answer, or null. That one must stay loaded.
extern "C" __attribute__((visibility("default"))) void* daceopt_share_scratch(void* other) {
    using namespace daceopt::detail;
    if (other) source.store(reinterpret_cast<Source>(other), std::memory_order_relaxed);
    return reinterpret_cast<void*>(source.load(std::memory_order_relaxed));
}
