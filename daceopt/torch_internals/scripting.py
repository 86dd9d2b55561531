"""``torch.jit.script``: what it reads the source of."""

from __future__ import annotations

from torch.jit import _recursive

from daceopt.torch_internals.release import private_names

with private_names():
    # What TorchScript compiles of a method: of its function, and its name
    make_stub = _recursive.make_stub
