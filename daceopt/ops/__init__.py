"""ONNX operators: node classes, native lowerings and gradient rules, one file per family."""

from daceopt.ops import registry  # noqa: I001  (first: the families register with it)
from daceopt.ops import (
    activation,
    attention,
    comparison,
    contraction,
    convolution,
    einsum,
    elementwise as _elementwise,
    indexing,
    joining,
    normalization,
    pooling,
    random,
    reduction,
    interpretation,
    shape,
    softmax,
)
from daceopt.ops.registry import (
    Coverage,
    Operator,
    coverage,
    elementwise,
    gradient,
    gradient_rule,
    has_gradient,
    lower,
    lower_all,
    lowering,
    supported,
    supports,
    why_unsupported,
)

__all__ = [
    "Coverage", "Operator", "activation", "attention", "comparison", "contraction", "convolution", "coverage", "einsum", "elementwise",
    "gradient", "gradient_rule", "has_gradient", "indexing", "interpretation", "joining", "lower", "lower_all", "lowering",
    "normalization", "pooling", "random", "reduction", "registry", "shape", "softmax", "supported", "supports", "why_unsupported",
]  # fmt: skip
