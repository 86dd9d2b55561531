"""In what torch's operators on CUDA devices compute products of float32: the user's switches, read and set aside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from daceopt.torch_internals.cuda_state import precision, set_precision

_OPERATIONS = ("matmul", "conv", "rnn")
_REDUCED = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


def uses_tf32() -> bool:
    """Do products of float32 round their factors to TF32?"""
    return bool(precision("cuda", "matmul") == "tf32")


@contextmanager
def exact() -> Iterator[None]:
    """Within the block, products and convolutions of float32 are computed in float32, and narrower ones are added up
    in it; the switches are the whole process's."""
    matmul = torch.backends.cuda.matmul
    reduced = {name: getattr(matmul, name) for name in _REDUCED if hasattr(matmul, name)}
    for name in reduced:
        setattr(matmul, name, False)
    try:
        with _without_tf32():
            yield
    finally:
        for name, before in reduced.items():
            setattr(matmul, name, before)


@contextmanager
def _without_tf32() -> Iterator[None]:
    rounded = [operation for operation in _OPERATIONS if precision("cuda", operation) == "tf32"]
    switch = _older_switch()
    if switch not in (None, "highest"):
        torch.set_float32_matmul_precision("highest")  # operators refuse to run where both kinds of switches differ
    for operation in rounded:
        set_precision("cuda", operation, "ieee")
    try:
        yield
    finally:
        if switch not in (None, "highest"):
            torch.set_float32_matmul_precision(switch)
        for operation in rounded:
            set_precision("cuda", operation, "tf32")


def _older_switch() -> str | None:
    """None where only the newer ones have been used: torch refuses to tell it then."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return None
