// The discrete Fourier transform along one axis, for any length.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace daceopt {
namespace dft {

constexpr double kPi = 3.14159265358979323846264338327950288;

struct Complex {
    double re = 0, im = 0;
};
inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
inline Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
inline Complex conjugate(Complex a) { return {a.re, -a.im}; }
inline Complex rotate(Complex a) { return {a.im, -a.re}; }  // times -i

// exp(-2 pi i k / n) for 0 <= k < n; the angle is brought below pi / 4 in integers, so that no digit is lost.
inline Complex root(int64_t k, int64_t n) {
    const bool lower = 2 * k > n;
    if (lower) k = n - k;
    const bool left = 4 * k > n;
    if (left) k = n - 2 * k;  // now in units of half a step
    const int64_t step = left ? 1 : 2;
    const bool steep = 4 * step * k > n;
    const double angle = kPi * double(steep ? n - 2 * step * k : 2 * step * k) / double(2 * n);
    const double c = steep ? std::sin(angle) : std::cos(angle);
    const double s = steep ? std::cos(angle) : std::sin(angle);
    return {left ? -c : c, lower ? s : -s};
}

struct Scratch {
    std::vector<Complex> pass, wide;
};

// Forward transforms of one length. Stockham's self-sorting form over the prime factors (4 before 2); lengths with a
// prime factor above 31 go through a convolution of a power of two (Bluestein, 1970).
class Plan {
public:
    explicit Plan(int64_t n) : n_(n) {
        factorise();
        roots_.resize(n);
        if (convolves()) prepare_chirp();
        else
            for (int64_t k = 0; k < n; ++k) roots_[k] = root(k, n);
    }

    // data: n values, replaced
    void run(Complex* data, Scratch& scratch) const {
        if (convolves()) return convolve(data, scratch);
        scratch.pass.resize(n_);
        Complex *from = data, *to = scratch.pass.data();
        int64_t done = 1;
        for (int64_t p : factors_) {
            pass(from, to, p, done);
            std::swap(from, to);
            done *= p;
        }
        if (from != data) std::copy(from, from + n_, data);
    }

private:
    bool convolves() const { return !factors_.empty() && factors_.back() > 31; }

    void factorise() {
        int64_t rest = n_;
        while (rest % 4 == 0) factors_.push_back(4), rest /= 4;
        for (int64_t p = 2; p * p <= rest; ++p)
            while (rest % p == 0) factors_.push_back(p), rest /= p;
        if (rest > 1) factors_.push_back(rest);
    }

    // One factor p: blocks of n / (done p) values at a stride of p blocks become p blocks at a stride of done.
    void pass(const Complex* from, Complex* to, int64_t p, int64_t done) const {
        const int64_t inner = n_ / (done * p);
        for (int64_t k = 0; k < done; ++k)
            for (int64_t i = 0; i < inner; ++i) {
                const Complex* x = from + i + inner * p * k;
                Complex* y = to + i + inner * k;
                if (p == 2) two(x, y, inner, done, i);
                else if (p == 4) four(x, y, inner, done, i);
                else any(x, y, inner, done, i, p);
            }
    }

    void two(const Complex* x, Complex* y, int64_t inner, int64_t done, int64_t i) const {
        const Complex a = x[0], b = x[inner];
        y[0] = a + b;
        y[inner * done] = (a - b) * roots_[done * i];
    }

    void four(const Complex* x, Complex* y, int64_t inner, int64_t done, int64_t i) const {
        const Complex a = x[0] + x[2 * inner], b = x[0] - x[2 * inner];
        const Complex c = x[inner] + x[3 * inner], d = rotate(x[inner] - x[3 * inner]);
        const int64_t out = inner * done, turn = done * i;
        y[0] = a + c;
        y[out] = (b + d) * roots_[turn];
        y[2 * out] = (a - c) * roots_[2 * turn];
        y[3 * out] = (b - d) * roots_[3 * turn];
    }

    void any(const Complex* x, Complex* y, int64_t inner, int64_t done, int64_t i, int64_t p) const {
        for (int64_t q = 0; q < p; ++q) {
            Complex sum = x[0];
            for (int64_t j = 1; j < p; ++j) sum = sum + x[inner * j] * roots_[n_ / p * (j * q % p)];
            y[inner * done * q] = sum * roots_[done * q * i];
        }
    }

    // x_k -> w_k sum_j (x_j w_j) conj(w_{k-j}) with w_k = exp(-pi i k^2 / n)
    void prepare_chirp() {
        int64_t size = 1;
        while (size < 2 * n_ - 1) size *= 2;
        inner_.emplace_back(size);
        for (int64_t k = 0, square = 0; k < n_; ++k) {
            roots_[k] = root(square, 2 * n_);
            square = (square + 2 * k + 1) % (2 * n_);  // (k + 1)^2 modulo 2 n, which stays small
        }
        chirp_.assign(size, {});
        for (int64_t k = 0; k < n_; ++k) chirp_[k] = chirp_[(size - k) % size] = conjugate(roots_[k]);
        Scratch scratch;
        inner_[0].run(chirp_.data(), scratch);
    }

    void convolve(Complex* data, Scratch& scratch) const {
        const int64_t size = int64_t(chirp_.size());
        std::vector<Complex>& wide = scratch.wide;
        wide.assign(size, {});
        for (int64_t k = 0; k < n_; ++k) wide[k] = data[k] * roots_[k];
        inner_[0].run(wide.data(), scratch);
        for (int64_t k = 0; k < size; ++k) wide[k] = conjugate(wide[k] * chirp_[k]);
        inner_[0].run(wide.data(), scratch);
        for (int64_t k = 0; k < n_; ++k) {
            const Complex v = conjugate(wide[k]) * roots_[k];
            data[k] = {v.re / double(size), v.im / double(size)};
        }
    }

    int64_t n_;
    std::vector<int64_t> factors_;
    std::vector<Complex> roots_, chirp_;
    std::vector<Plan> inner_;  // of the power of two, when convolving
};

}  // namespace dft

// parameters: elements before the axis, extent of x at it, elements between it and the components, components of x
// (1: real, 2: complex), extent of y at the axis, components of y, length; 1 for the inverse; 1 to divide by the length;
// 1 when x holds only the first half of a spectrum whose other half is its mirror image.
// Along the axis x is cropped or padded with zeros to the length, and y likewise. Computed in double.
template <typename T>
void fourier(const T* x, T* y, const int64_t* parameters) {
    using dft::Complex;
    const int64_t outer = parameters[0], extent_x = parameters[1], inner = parameters[2], parts_x = parameters[3];
    const int64_t extent_y = parameters[4], parts_y = parameters[5], n = parameters[6];
    const bool inverse = parameters[7], normalised = parameters[8], mirrored = parameters[9];
    if (n <= 0) {
        std::fill(y, y + outer * extent_y * inner * parts_y, T(0));
        return;
    }
    const dft::Plan plan(n);
    const double scale = normalised ? 1.0 / double(n) : 1.0;
    const int64_t given = std::min(extent_x, mirrored ? n / 2 + 1 : n);
#pragma omp parallel if (outer * inner > 1 && outer * inner * n > 4096)
    {
        std::vector<Complex> row(n);
        dft::Scratch scratch;
#pragma omp for collapse(2)
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < inner; ++i) {
                std::fill(row.begin(), row.end(), Complex{});
                for (int64_t k = 0; k < given; ++k) {
                    const T* at = x + ((o * extent_x + k) * inner + i) * parts_x;
                    row[k] = {double(at[0]), parts_x == 2 ? double(at[1]) : 0.0};
                }
                if (mirrored) {
                    row[0].im = 0;
                    if (n % 2 == 0) row[n / 2].im = 0;
                    for (int64_t k = n / 2 + 1; k < n; ++k) row[k] = dft::conjugate(row[n - k]);
                }
                // the inverse is the conjugate of the transform of the conjugate
                if (inverse)
                    for (Complex& v : row) v.im = -v.im;
                plan.run(row.data(), scratch);
                for (int64_t k = 0; k < extent_y; ++k) {
                    T* at = y + ((o * extent_y + k) * inner + i) * parts_y;
                    const Complex v = k < n ? row[k] : Complex{};
                    at[0] = T(v.re * scale);
                    if (parts_y == 2) at[1] = T((inverse ? -v.im : v.im) * scale);
                }
            }
    }
}

}  // namespace daceopt
