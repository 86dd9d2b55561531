// Batched matrix products: what generated code calls. Compiled once, in libs/src.
#pragma once
#include <cstdint>

#include "daceopt/element.h"
#include "daceopt/sizes.h"
#include "daceopt/status.h"

namespace daceopt {

template <typename T>
struct Matrix {  // data, strides of row, column and of each batch dimension (0 = broadcast)
    T* data;
    int64_t row, col;
    BatchSizes batch;
};

template <typename T>
struct Product {
    int64_t m, n, k;
    BatchSizes batch;
    T alpha;
    Matrix<const T> a, b, bias, residual;  // bias and residual: data may be null; strides are those of y's elements
    Matrix<T> y;
    bool relu;
};

struct Place {  // a Matrix whose element type is known at run time
    void* data;
    int64_t row, col;
    BatchSizes batch;
    Element type;
};

// A product of bfloat16 factors: sums in float, the result rounded once. Every other operand has a type of its own.
struct NarrowProduct {
    int64_t m, n, k;
    BatchSizes batch;
    float alpha;
    Place a, b, bias, residual, y;
    bool relu;
};

// y = activation(alpha a b + bias + residual). Reports to `status`; never throws.
template <typename T>
void contraction_mkl(const Product<T>& product);  // float, double
void contraction_onednn(const Product<float>& product);
void contraction_onednn(const NarrowProduct& product);
// These widen the factors first.
void contraction_mkl(const NarrowProduct& product);
void contraction_native(const NarrowProduct& product);
template <typename T>
void contraction_native(const Product<T>& product);  // all arithmetic types

}  // namespace daceopt
