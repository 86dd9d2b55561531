// Convolutions and their gradients by plain loops, over any strides, up to three spatial dimensions.
#pragma once
#include <cstdint>

#include "daceopt/element.h"

namespace daceopt {

struct Bfloat16 {
    uint16_t bits;
    operator double() const { return from_bfloat16(bits); }
    Bfloat16& operator=(double value) {
        bits = to_bfloat16(static_cast<float>(value));
        return *this;
    }
};

// Spatial triples are filled with extent 1 in front; channels are those of one group.
struct ConvolutionShape {
    int64_t batch, groups, in_channels, out_channels;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
};

template <typename T>
struct Operand {  // data (may be null) and strides: of an image batch, block of channels, space; of weights out, in, space
    T* data;
    int64_t strides[5];
    int64_t block = 1;  // channels that stand side by side
    T& at(int64_t a, int64_t b, const int64_t (&s)[3]) const {
        const int64_t place = s[0] * strides[2] + s[1] * strides[3] + s[2] * strides[4];
        return data[a * strides[0] + b / block * strides[1] + b % block + place];
    }
};

// Calls visit(k, image) for each element k of the window at o that lies inside of the image.
template <typename Visitor>
void for_window(const ConvolutionShape& c, const int64_t (&o)[3], Visitor visit) {
    int64_t k[3], i[3];
    for (k[0] = 0; k[0] < c.kernel[0]; ++k[0])
        for (k[1] = 0; k[1] < c.kernel[1]; ++k[1])
            for (k[2] = 0; k[2] < c.kernel[2]; ++k[2]) {
                bool inside = true;
                for (int d = 0; d < 3; ++d) {
                    i[d] = o[d] * c.stride[d] - c.pad[d] + k[d] * c.dilation[d];
                    inside = inside && i[d] >= 0 && i[d] < c.in[d];
                }
                if (inside) visit(k, i);
            }
}

template <typename Visitor>
void for_space(const int64_t (&extents)[3], Visitor visit) {
    int64_t o[3];
    for (o[0] = 0; o[0] < extents[0]; ++o[0])
        for (o[1] = 0; o[1] < extents[1]; ++o[1])
            for (o[2] = 0; o[2] < extents[2]; ++o[2]) visit(o);
}

// y = (conv(x, w) + bias) * scale + shift + z, and a relu of that: below 0 multiplied by the slope, at most the ceiling;
// what is null is left out.
template <typename X, typename W, typename B, typename S, typename T, typename Z, typename Y>
void convolution_native(const ConvolutionShape& c, Operand<X> x, Operand<W> w, const B* bias, const S* scale, const T* shift,
                        Operand<Z> z, Operand<Y> y, bool relu, double slope, double ceiling) {
#pragma omp parallel for collapse(2)
    for (int64_t n = 0; n < c.batch; ++n)
        for (int64_t feature = 0; feature < c.groups * c.out_channels; ++feature)
            for_space(c.out, [&](const int64_t (&o)[3]) {
                const int64_t first = feature / c.out_channels * c.in_channels;
                double sum = 0;
                for_window(c, o, [&](const int64_t (&k)[3], const int64_t (&i)[3]) {
                    for (int64_t a = 0; a < c.in_channels; ++a)
                        sum += double(x.at(n, first + a, i)) * double(w.at(feature, a, k));
                });
                if (bias) sum += double(bias[feature]);
                if (scale) sum *= double(scale[feature]);
                if (shift) sum += double(shift[feature]);
                if (z.data) sum += double(z.at(n, feature, o));
                if (relu && sum <= 0) sum = slope == 0 ? 0.0 : slope * sum;
                y.at(n, feature, o) = relu && sum > ceiling ? ceiling : sum;
            });
}

template <typename DY, typename W, typename DX>
void convolution_native_data(const ConvolutionShape& c, Operand<DY> dy, Operand<W> w, Operand<DX> dx) {
#pragma omp parallel for collapse(2)
    for (int64_t n = 0; n < c.batch; ++n)
        for (int64_t channel = 0; channel < c.groups * c.in_channels; ++channel) {
            const int64_t group = channel / c.in_channels, a = channel % c.in_channels;
            double* sums = new double[c.in[0] * c.in[1] * c.in[2]]();
            for_space(c.out, [&](const int64_t (&o)[3]) {
                for_window(c, o, [&](const int64_t (&k)[3], const int64_t (&i)[3]) {
                    double& sum = sums[(i[0] * c.in[1] + i[1]) * c.in[2] + i[2]];
                    for (int64_t f = group * c.out_channels; f < (group + 1) * c.out_channels; ++f)
                        sum += double(dy.at(n, f, o)) * double(w.at(f, a, k));
                });
            });
            for_space(c.in, [&](const int64_t (&i)[3]) {
                dx.at(n, channel, i) = sums[(i[0] * c.in[1] + i[1]) * c.in[2] + i[2]];
            });
            delete[] sums;
        }
}

template <typename X, typename DY, typename DW, typename DB>
void convolution_native_weights(const ConvolutionShape& c, Operand<X> x, Operand<DY> dy, Operand<DW> dw, DB* db) {
#pragma omp parallel for collapse(2)
    for (int64_t feature = 0; feature < c.groups * c.out_channels; ++feature)
        for (int64_t a = 0; a < c.in_channels; ++a) {
            const int64_t channel = feature / c.out_channels * c.in_channels + a;
            double* sums = new double[c.kernel[0] * c.kernel[1] * c.kernel[2]]();
            for (int64_t n = 0; n < c.batch; ++n)
                for_space(c.out, [&](const int64_t (&o)[3]) {
                    for_window(c, o, [&](const int64_t (&k)[3], const int64_t (&i)[3]) {
                        sums[(k[0] * c.kernel[1] + k[1]) * c.kernel[2] + k[2]] +=
                            double(x.at(n, channel, i)) * double(dy.at(n, feature, o));
                    });
                });
            for_space(c.kernel, [&](const int64_t (&k)[3]) {
                dw.at(feature, a, k) = sums[(k[0] * c.kernel[1] + k[1]) * c.kernel[2] + k[2]];
            });
            delete[] sums;
        }
    for (int64_t feature = 0; db && feature < c.groups * c.out_channels; ++feature) {
        double sum = 0;
        for (int64_t n = 0; n < c.batch; ++n)
            for_space(c.out, [&](const int64_t (&o)[3]) { sum += double(dy.at(n, feature, o)); });
        db[feature] = sum;
    }
}

}  // namespace daceopt
