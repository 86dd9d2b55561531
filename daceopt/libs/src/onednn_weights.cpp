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

PackedWeights::PackedWeights() : copies_(std::make_unique<Copies>()) {}
PackedWeights::~PackedWeights() = default;

void* PackedWeights::prepared(const Preparation& wanted) {
    const std::lock_guard<std::mutex> lock(copies_->mutex);
    for (const auto& copy : copies_->found)
        if (copy.layout == layout_of(wanted)) return copy.data.get();
    Block data = allocated(wanted.bytes);
    wanted.fill(data.get(), wanted.source);
    copies_->found.push_back({layout_of(wanted), std::move(data)});
    return copies_->found.back().data.get();
}

struct CheckedWeights::Copy {
    memory::desc layout;
    Digest digest, factors;
    Block data;
};

void* CheckedWeights::Use::prepared(const Preparation& wanted) {
    if (is_first_ || !current_ || current_->layout != layout_of(wanted)) current_ = shared_.get(wanted);
    return current_->data.get();
}

std::shared_ptr<const CheckedWeights::Copy> CheckedWeights::get(const Preparation& wanted) {
    const Digest weights = digest(wanted.source, wanted.source_bytes), factors = digest(wanted.factors, wanted.factors_bytes);
    auto copy = std::make_shared<Copy>(Copy{layout_of(wanted), weights, factors, {nullptr, &std::free}});
    if (auto known = found(*copy)) return known;
    copy->data = allocated(wanted.bytes);
    wanted.fill(copy->data.get(), wanted.source);
    keep(copy);
    return copy;
}

std::shared_ptr<const CheckedWeights::Copy> CheckedWeights::found(const Copy& like) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto same = [&](const auto& c) { return c->digest == like.digest && c->factors == like.factors && c->layout == like.layout; };
    const auto position = std::find_if(copies_.begin(), copies_.end(), same);
    if (position == copies_.end()) return nullptr;
    std::rotate(copies_.begin(), position, position + 1);
    return copies_.front();
}

void CheckedWeights::keep(std::shared_ptr<const Copy> copy) {
    constexpr size_t kCopies = 2;  // each takes as much memory as the weights
    const std::lock_guard<std::mutex> lock(mutex_);
    copies_.insert(copies_.begin(), std::move(copy));
    if (copies_.size() > kCopies) copies_.resize(kCopies);
}

}  // namespace daceopt
