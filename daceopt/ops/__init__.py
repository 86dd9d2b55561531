"""ONNX operators: node classes, native lowerings and gradient rules, one file per family."""

import daceopt.ops.core.attention_reference
import daceopt.ops.core.function_body
import daceopt.ops.core.interpretation
import daceopt.ops.core.simulated_ranks
import daceopt.ops.families  # noqa: F401  (as those above: registers its rules)
from daceopt.ir.graph.operator import Operator
from daceopt.ops.core import registry
from daceopt.ops.core.interpretation import dissent
from daceopt.ops.core.operator_table import Coverage, coverage
from daceopt.ops.core.registry import (
    elementwise,
    gradient,
    gradient_rule,
    has_gradient,
    is_supported,
    lower,
    lower_all,
    lowering,
    supports,
    why_unsupported,
)

registry.seal()

__all__ = [
    "Coverage",
    "Operator",
    "coverage",
    "dissent",
    "elementwise",
    "gradient",
    "gradient_rule",
    "has_gradient",
    "is_supported",
    "lower",
    "lower_all",
    "lowering",
    "registry",
    "supports",
    "why_unsupported",
]
