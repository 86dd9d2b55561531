// 128 bits that stand for the contents of memory: equal bytes have equal digests, with any number of threads.
//
// Not made against an adversary: whoever can choose weights can choose results. Each 8 bytes go into one of 32 lanes by
// lane = rotate(lane ^ word, 29) * odd, which is invertible in the word: contents that differ in one word of a lane never have
// equal lanes, others with a chance of 2^-64.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace daceopt {

struct Digest {
    uint64_t low, high;
    bool operator==(const Digest& other) const { return low == other.low && high == other.high; }
};

namespace detail {

constexpr uint64_t kOdd = 0x9fb21c651e98df25, kOther = 0xd6e8feb86659fd93;
constexpr size_t kLanes = 32, kRow = kLanes * sizeof(uint64_t), kPiece = 65536;  // a multiple of the row

inline uint64_t rotated(uint64_t x, int by) { return x << by | x >> (64 - by); }

// Every bit of the result depends on every bit of `x`.
inline uint64_t scrambled(uint64_t x) {
    x = (x ^ x >> 32) * kOdd;
    x = (x ^ x >> 29) * kOther;
    return x ^ x >> 32;
}

inline void absorb(uint64_t* __restrict__ lanes, const unsigned char* row) {
    uint64_t words[kLanes];
    std::memcpy(words, row, kRow);
#pragma omp simd
    for (size_t k = 0; k < kLanes; ++k) lanes[k] = rotated(lanes[k] ^ words[k], 29) * kOdd;
}

inline void fold(Digest& into, uint64_t word) {
    into.low = scrambled(into.low ^ word);
    into.high = scrambled(into.high + rotated(word, 17)) * kOther;
}

inline Digest digest_of_piece(const unsigned char* data, size_t bytes) {
    alignas(64) uint64_t lanes[kLanes];
    for (size_t k = 0; k < kLanes; ++k) lanes[k] = (k + 1) * kOther;
    size_t at = 0;
    for (; at + kRow <= bytes; at += kRow) absorb(lanes, data + at);
    unsigned char rest[kRow] = {};
    std::memcpy(rest, data + at, bytes - at);
    absorb(lanes, rest);
    Digest found{bytes, ~uint64_t(bytes)};
    for (uint64_t lane : lanes) fold(found, lane);
    return found;
}

}  // namespace detail

inline Digest digest(const void* data, size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(data);
    const int64_t pieces = (bytes + detail::kPiece - 1) / detail::kPiece;
    std::vector<Digest> found(pieces);
#pragma omp parallel for schedule(static) if (pieces > 3)
    for (int64_t k = 0; k < pieces; ++k) {
        const size_t at = k * detail::kPiece;
        found[k] = detail::digest_of_piece(first + at, bytes - at < detail::kPiece ? bytes - at : detail::kPiece);
    }
    Digest all{bytes, pieces + detail::kOdd};
    for (const Digest& piece : found) detail::fold(all, piece.low), detail::fold(all, piece.high);
    return all;
}

}  // namespace daceopt
