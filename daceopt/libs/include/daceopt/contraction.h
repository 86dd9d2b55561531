// Batched matrix products: what generated code calls. Compiled once, in libs/src.
#pragma once
#include <cstdint>
#include <vector>

#include "daceopt/status.h"

namespace daceopt {

template <typename T>
struct Matrix {  // data, strides of row, column and of each batch dimension (0 = broadcast)
    T* data;
    int64_t row, col;
    std::vector<int64_t> batch;
};

template <typename T>
struct Product {
    int64_t m, n, k;
    std::vector<int64_t> batch;
    T alpha;
    Matrix<const T> a, b, bias, residual;  // bias and residual: data may be null; strides are those of y's elements
    Matrix<T> y;
    bool relu;
};

// y = activation(alpha a b + bias + residual). Reports to `status`; never throws.
template <typename T>
void contraction_mkl(const Product<T>& product);  // float, double
void contraction_onednn(const Product<float>& product);
template <typename T>
void contraction_native(const Product<T>& product);  // all arithmetic types

}  // namespace daceopt
