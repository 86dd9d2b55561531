"""ONNX operators: node classes, native lowerings and gradient rules, one file per family."""

from daceopt.ops import registry  # noqa: I001  (first: the families register with it)
from daceopt.ops import (  # noqa: F401
    activation,
    attention,
    comparison,
    contraction,
    control_flow,
    convolution,
    determinant,
    einsum,
    elementwise as _elementwise,
    grid,
    indexing,
    joining,
    loss,
    normalization,
    pooling,
    quantization,
    random,
    recurrent,
    reduction,
    resize,
    interpretation,
    scan,
    scatter,
    searching,
    shape,
    signal,
    softmax,
    sorting,
    taking,
    text,
    vision,
)
from daceopt.ops.operator_table import Coverage, coverage
from daceopt.ops.registry import (
    Operator,
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

registry.seal()

__all__ = [
    "Coverage",
    "Operator",
    "coverage",
    "elementwise",
    "gradient",
    "gradient_rule",
    "has_gradient",
    "lower",
    "lower_all",
    "lowering",
    "registry",
    "supported",
    "supports",
    "why_unsupported",
]
