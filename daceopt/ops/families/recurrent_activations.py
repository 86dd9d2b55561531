"""Activations of RNN, GRU and LSTM, by the names and parameters that the operators give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sympy

from daceopt.ir.scalar import scalar
from daceopt.ops.core.registry import Operator
from daceopt.ops.families import activation

DEFAULT = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Of each direction: does it go from the end?"""

# name -> (form, default alpha, default beta), as ONNX Runtime has them; None: the function has no such parameter
ACTIVATIONS: dict[str, tuple[Callable[..., sympy.Expr], float | None, float | None]] = {
    "relu": (activation.relu, None, None),
    "tanh": (sympy.tanh, None, None),
    "sigmoid": (scalar.sigmoid, None, None),
    "softsign": (activation.softsign, None, None),
    "softplus": (scalar.softplus, None, None),
    "affine": (lambda x, alpha, beta: alpha * x + beta, 0.0, 0.0),
    "leakyrelu": (activation.FORMS["LeakyRelu"][1], 0.01, None),
    "thresholdedrelu": (activation.FORMS["ThresholdedRelu"][1], 0.0, None),
    "scaledtanh": (lambda x, alpha, beta: alpha * sympy.tanh(beta * x), 0.0, 0.0),
    "hardsigmoid": (activation.FORMS["HardSigmoid"][1], 0.2, 0.5),
    "elu": (activation.FORMS["Elu"][1], 1.0, None),
}

Function = Callable[[sympy.Expr], sympy.Expr]


def functions(node: Operator) -> list[Function]:
    """The activations of all directions in order; parameters are taken from the lists by those that have them.

    The gates' operands are clipped, the cell's way to the output is not: as ONNX Runtime does it.
    """
    alphas, betas = iter(node.attribute("activation_alpha", [])), iter(node.attribute("activation_beta", []))
    clip = node.attribute("clip")
    result: list[Function] = []
    for k, name in enumerate(activation_names(node)):
        form, alpha, beta = ACTIVATIONS[name.lower()]
        own = [next(source, default) for source, default in ((alphas, alpha), (betas, beta)) if default is not None]
        parameters = [scalar.number(v) for v in own]
        result.append(_clip(form, parameters, None if node.op_type == "LSTM" and k % 3 == 2 else clip))
    return result


def activation_names(node: Operator) -> list[str]:
    """One list for each direction, one after the other."""
    default = DEFAULT[node.op_type]
    names = list(node.attribute("activations") or ())
    count = len(default) * len(DIRECTIONS[node.attribute("direction")])
    return names[:count] if len(names) >= count else default * (count // len(default))


def _clip(form: Callable[..., sympy.Expr], parameters: Sequence[object], clip: float | None) -> Function:
    if clip is None:
        return lambda x: form(x, *parameters)
    bound = sympy.Float(clip)
    return lambda x: form(scalar.maximum(scalar.minimum(x, bound), -bound), *parameters)
