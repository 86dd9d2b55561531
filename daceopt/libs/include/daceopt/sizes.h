// Sizes, strides or paddings, one per dimension, which stand in the object itself: a list of calls with vectors in their place
// takes five times as long to compile, and each call allocates some twenty of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <vector>

namespace daceopt {

class Sizes {
public:
    static constexpr size_t kMost = 12;  // as many as oneDNN takes

    Sizes() = default;
    Sizes(std::initializer_list<int64_t> values) : Sizes(values.begin(), values.size()) {}
    Sizes(const std::vector<int64_t>& values) : Sizes(values.data(), values.size()) {}

    operator std::vector<int64_t>() const { return {begin(), end()}; }

    size_t size() const { return size_; }
    int64_t operator[](size_t i) const { return values_[i]; }
    const int64_t* begin() const { return values_; }
    const int64_t* end() const { return values_ + size_; }

private:
    Sizes(const int64_t* values, size_t size) : size_(size) {
        if (size > kMost) throw std::bad_array_new_length();
        for (size_t i = 0; i < size; ++i) values_[i] = values[i];
    }

    size_t size_ = 0;
    int64_t values_[kMost];
};

}  // namespace daceopt
