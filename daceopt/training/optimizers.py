"""The optimizers whose updates are compiled: what of a group decides about the code, what is a number of each call.

PyTorch's own loops (``torch/optim/sgd.py``, ``adam.py``: ``_single_tensor_*``) are what a step computes; ``foreach``,
``fused`` and ``capturable`` choose an implementation there and mean nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Group = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """``flags``: what of a group decides about the code; ``state``: the tensors beside each parameter, for these flags;
    ``coefficients``: the numbers that the code reads, as Python's floats, for the step's number and whether the state
    is new; ``counts``: whether the optimizer counts steps in a tensor of its own.
    """

    flags: Callable[[Group], tuple[str, ...]]
    state: Callable[[tuple[str, ...]], tuple[str, ...]]
    coefficients: Callable[[Group, float, bool], tuple[float, ...]]
    counts: bool


def _set(**flags: object) -> tuple[str, ...]:
    return tuple(name for name, value in flags.items() if value)


def _sgd_flags(group: Group) -> tuple[str, ...]:
    momentum = group["momentum"] != 0
    decay, nesterov = group["weight_decay"] != 0, momentum and group["nesterov"]
    return _set(momentum=momentum, nesterov=nesterov, decay=decay, maximize=group["maximize"])


def _sgd(group: Group, step: float, fresh: bool) -> tuple[float, ...]:
    """lr, weight decay, momentum, the factor of the gradient in the buffer: a new one is the gradient itself."""
    dampening = 0.0 if fresh else float(group["dampening"])
    return float(group["lr"]), float(group["weight_decay"]), float(group["momentum"]), 1 - dampening


def _adam_flags(group: Group) -> tuple[str, ...]:
    decay, decoupled = group["weight_decay"] != 0, group.get("decoupled_weight_decay", False)
    shrink, add = decay and decoupled, decay and not decoupled
    return _set(amsgrad=group["amsgrad"], shrink=shrink, decay=add, maximize=group["maximize"])


def _adam(group: Group, step: float, fresh: bool) -> tuple[float, ...]:
    """Weight decay (1 - lr * it where decoupled), betas and what they leave, the factors of both moments, epsilon.

    A learning rate that is a tensor has its type's precision in what is computed of it, as in torch.optim.
    """
    lr, decay = group["lr"], float(group["weight_decay"])
    beta1, beta2 = map(float, group["betas"])
    first, second = float(lr / (1 - beta1**step)), 1 / (1 - beta2**step) ** 0.5
    decay = float(1 - lr * decay) if group.get("decoupled_weight_decay", False) else decay
    return decay, beta1, 1 - beta1, beta2, 1 - beta2, first, second, float(group["eps"])


def _adam_state(flags: tuple[str, ...]) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if "amsgrad" in flags else ("exp_avg", "exp_avg_sq")


RULES = {
    "sgd": Rule(_sgd_flags, lambda flags: ("momentum_buffer",) if "momentum" in flags else (), _sgd, counts=False),
    "adam": Rule(_adam_flags, _adam_state, _adam, counts=True),
}
BY_CLASS: dict[type, str] = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adam"}
"""Exactly these classes: a subclass may do anything."""
