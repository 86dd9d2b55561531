"""The rule of each optimizer as scalar code: new values of a parameter and of its state from its gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy

from daceopt.ir.scalar import scalar

States = Sequence[sympy.Expr]
Coefficients = Mapping[int, sympy.Expr]
ScalarRule = Callable[[tuple[str, ...], sympy.Expr, sympy.Expr, States, Coefficients], tuple[sympy.Expr, ...]]
"""(flags, gradient, parameter, states, coefficients by column, as ``optimizers`` has them) -> new parameter and states.
"""


def sgd(
    flags: tuple[str, ...], g: sympy.Expr, w: sympy.Expr, states: States, c: Coefficients
) -> tuple[sympy.Expr, ...]:
    """Sutskever et al., On the importance of initialization and momentum in deep learning (ICML 2013), as PyTorch has
    it: the learning rate is outside of the buffer."""
    g = -g if "maximize" in flags else g
    g = g + c[1] * w if "decay" in flags else g
    if "momentum" not in flags:
        return (w - c[0] * g,)
    buffer = c[2] * states[0] + c[3] * g
    step = g + c[2] * buffer if "nesterov" in flags else buffer
    return w - c[0] * step, buffer


def adam(
    flags: tuple[str, ...], g: sympy.Expr, w: sympy.Expr, states: States, c: Coefficients
) -> tuple[sympy.Expr, ...]:
    """Kingma and Ba, Adam (ICLR 2015), algorithm 1; AMSGrad: Reddi et al. (ICLR 2018), algorithm 2; decoupled decay
    (``shrink``): Loshchilov and Hutter (ICLR 2019), algorithm 2."""
    g = -g if "maximize" in flags else g
    g = g + c[0] * w if "decay" in flags else g
    w = c[0] * w if "shrink" in flags else w
    mean, square = c[1] * states[0] + c[2] * g, c[3] * states[1] + c[4] * g * g
    largest = scalar.maximum(states[2], square) if "amsgrad" in flags else square
    moved = w - c[5] * mean / (sympy.sqrt(largest) * c[6] + c[7])
    return (moved, mean, square, largest) if "amsgrad" in flags else (moved, mean, square)


SCALAR_RULES: dict[str, ScalarRule] = {"sgd": sgd, "adam": adam}
