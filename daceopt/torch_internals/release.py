"""PyTorch's release: for which ones private names are known to be there, and what is said where one is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from daceopt.errors import PyTorchChanged

TESTED = ("2.13.0",)
"""The releases whose private names are those of this room (``tests/torch_internals/test_names.py``)."""


@contextmanager
def private_names() -> Iterator[None]:
    """Around imports and look-ups of private names. Raises PyTorchChanged where PyTorch does not have one."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise PyTorchChanged(str(error), torch.__version__, TESTED) from error
