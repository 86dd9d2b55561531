// Weights in the layouts of oneDNN's kernels, kept for a program, or for as long as they stay the same.
#include <algorithm>

#include "daceopt/digest.h"
#include "daceopt/onednn_cache.h"

namespace daceopt {
namespace {

using detail::memory;
using Block = std::unique_ptr<void, decltype(&std::free)>;

Block allocated(size_t bytes) {
    Block block(std::aligned_alloc(64, (bytes + 4095) / 4096 * 4096), &std::free);
    if (!block) throw std::bad_alloc();
    return block;
}

const memory::desc& layout_of(const Preparation& wanted) { return *static_cast<const memory::desc*>(wanted.layout); }

}  // namespace

struct PackedWeights::Copies {
    struct Copy {
        memory::desc layout;
        Block data;
    };
    std::mutex mutex;
    std::vector<Copy> found;
};

PackedWeights::PackedWeights() : copies_(new Copies) {}
PackedWeights::~PackedWeights() { delete copies_; }

void* PackedWeights::prepared(const Preparation& wanted) {
    const std::lock_guard<std::mutex> lock(copies_->mutex);
    for (const auto& copy : copies_->found)
        if (copy.layout == layout_of(wanted)) return copy.data.get();
    Block data = allocated(wanted.bytes);
    wanted.fill(data.get(), wanted.source);
    copies_->found.push_back({layout_of(wanted), std::move(data)});
    return copies_->found.back().data.get();
}

namespace {

struct Copy {
    memory::desc layout;
    Digest digest, factors;
    Block data;
};

}  // namespace

struct CheckedWeights::Copies {
    std::shared_ptr<const Copy> get(const Preparation& wanted);
    std::shared_ptr<const Copy> found(const Copy& like);
    void keep(std::shared_ptr<const Copy> copy);

    std::mutex mutex;
    std::vector<std::shared_ptr<const Copy>> kept;  // the last used one first
};

struct CheckedWeights::Use::Current {
    std::shared_ptr<const Copy> copy;
};

CheckedWeights::CheckedWeights() : copies_(new Copies) {}
CheckedWeights::~CheckedWeights() { delete copies_; }

CheckedWeights::Use::Use(CheckedWeights& shared) : shared_(shared), current_(new Current) {}
CheckedWeights::Use::~Use() { delete current_; }

void* CheckedWeights::Use::prepared(const Preparation& wanted) {
    auto& copy = current_->copy;
    if (is_first_ || !copy || copy->layout != layout_of(wanted)) copy = shared_.copies_->get(wanted);
    return copy->data.get();
}

std::shared_ptr<const Copy> CheckedWeights::Copies::get(const Preparation& wanted) {
    const Digest weights = digest(wanted.source, wanted.source_bytes), factors = digest(wanted.factors, wanted.factors_bytes);
    auto copy = std::make_shared<Copy>(Copy{layout_of(wanted), weights, factors, {nullptr, &std::free}});
    if (auto known = found(*copy)) return known;
    copy->data = allocated(wanted.bytes);
    wanted.fill(copy->data.get(), wanted.source);
    keep(copy);
    return copy;
}

std::shared_ptr<const Copy> CheckedWeights::Copies::found(const Copy& like) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto same = [&](const auto& c) { return c->digest == like.digest && c->factors == like.factors && c->layout == like.layout; };
    const auto position = std::find_if(kept.begin(), kept.end(), same);
    if (position == kept.end()) return nullptr;
    std::rotate(kept.begin(), position, position + 1);
    return kept.front();
}

void CheckedWeights::Copies::keep(std::shared_ptr<const Copy> copy) {
    constexpr size_t kCopies = 2;  // each takes as much memory as the weights
    const std::lock_guard<std::mutex> lock(mutex);
    kept.insert(kept.begin(), std::move(copy));
    if (kept.size() > kCopies) kept.resize(kCopies);
}

}  // namespace daceopt
