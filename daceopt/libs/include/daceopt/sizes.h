// Sizes, strides or paddings, one per dimension, which stand in the object itself: a list of calls with vectors in their place
// takes five times as long to compile, and each call allocates some twenty of them. Reads no header that has vectors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>

namespace daceopt {

template <size_t most>
class SmallSizes {
public:
    static constexpr size_t kMost = most;

    SmallSizes() = default;
    SmallSizes(const SmallSizes& other) { copy(other.values_, other.size_); }
    SmallSizes(std::initializer_list<int64_t> values) { copy(values.begin(), values.size()); }
    template <typename Range, typename = decltype(static_cast<const Range*>(nullptr)->data())>
    SmallSizes(const Range& values) { copy(values.data(), values.size()); }

    SmallSizes& operator=(const SmallSizes& other) {
        copy(other.values_, other.size_);
        return *this;
    }

    static SmallSizes zeros(size_t size) {
        SmallSizes all;
        all.resize(size);
        for (size_t i = 0; i < size; ++i) all.values_[i] = 0;
        return all;
    }

    template <typename Vector, typename = typename Vector::allocator_type>
    operator Vector() const { return {begin(), end()}; }

    size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    int64_t operator[](size_t i) const { return values_[i]; }
    int64_t& operator[](size_t i) { return values_[i]; }
    const int64_t* data() const { return values_; }
    const int64_t* begin() const { return values_; }
    const int64_t* end() const { return values_ + size_; }

    void erase(size_t i) {
        for (--size_; i < size_; ++i) values_[i] = values_[i + 1];
    }

    void append(std::initializer_list<int64_t> values) {
        const size_t before = size_;
        resize(size_ + values.size());
        for (size_t i = before; i < size_; ++i) values_[i] = values.begin()[i - before];
    }

private:
    void copy(const int64_t* values, size_t size) {
        resize(size);
        for (size_t i = 0; i < size; ++i) values_[i] = values[i];
    }

    void resize(size_t size) {
        if (size > kMost) throw std::bad_array_new_length();
        size_ = size;
    }

    size_t size_ = 0;
    int64_t values_[kMost];
};

using Sizes = SmallSizes<12>;       // as many as oneDNN takes
using BatchSizes = SmallSizes<62>;  // of products of tensors of PyTorch, which have 64 dimensions at most

}  // namespace daceopt
