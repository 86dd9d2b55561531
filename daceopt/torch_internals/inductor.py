"""Inductor, PyTorch's own compiler, which is imported on first use."""

from __future__ import annotations

from contextlib import AbstractContextManager

from daceopt.torch_internals.release import private_names


def define_primitives() -> None:
    """Add Inductor's operators to those of ``torch.ops.prims``: ``fma``, say."""
    with private_names():
        import torch._inductor.inductor_prims  # noqa: F401


def without_caches() -> AbstractContextManager[None]:
    """A block in which Inductor compiles all anew."""
    with private_names():
        from torch._inductor import config
    return config.patch(force_disable_caches=True)
