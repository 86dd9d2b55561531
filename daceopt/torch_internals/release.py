"""PyTorch's release: for which ones private names are known to be there, and what is said where one is not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from daceopt.errors import PyTorchChanged

TESTED = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""The releases whose private names are those of this room (``make test-versions``), oldest first."""


@contextmanager
def private_names() -> Iterator[None]:
    """Around imports and look-ups of private names. Raises PyTorchChanged where PyTorch does not have one."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise PyTorchChanged(str(error), torch.__version__, TESTED) from error


def name_if_known(name: str) -> Any:
    """What a dotted name stands for; None where this release lacks it. The releases that have such a name are those of
    ``tests/torch_internals/releases.txt``."""
    path, _, attribute = name.rpartition(".")
    if not path:
        return None
    try:
        owner = import_module(path)
    except ModuleNotFoundError:
        owner = name_if_known(path)  # a class
    return getattr(owner, attribute, None)


def number_of(version: str) -> tuple[int, int]:
    """The first two numbers of a version, by which releases are told apart: (2, 13) of ``2.13.0+cpu``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def warn_beyond_tested(version: str) -> None:
    """Warn where PyTorch is older or newer than those that are tested."""
    if not number_of(TESTED[0]) <= number_of(version) <= number_of(TESTED[-1]):
        warnings.warn(
            f"PyTorch {version} is not among the releases that daceopt is tested with, {TESTED[0]} to {TESTED[-1]}. It "
            "is used as they are: what it lacks of their internals is an error that names it",
            stacklevel=2,
        )


warn_beyond_tested(torch.__version__)  # once: a module runs once
