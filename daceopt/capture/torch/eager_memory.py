"""How many bytes eager PyTorch saves for the backward of a graph: autograd is asked, on tensors without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from daceopt.capture.torch.traced import Traced
from daceopt.errors import DaceoptError


def saved_bytes(traced: Traced) -> int:
    """Bytes of the storages that autograd saves in one call, each once, but those of the arguments, which are there in
    any case. Sizes that are open count as in the call that is compiled for. Raises DaceoptError where it cannot run.
    """
    storages: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other one gets its address
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        arguments = [_fake(x, g) for x, g in zip(traced.inputs, traced.requires_grad, strict=True)]
        own = {x.untyped_storage()._cdata for x in arguments if isinstance(x, torch.Tensor)}
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                traced.graph.forward(*arguments)
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise DaceoptError(
                f"what eager PyTorch saves is not known ({reason}); expected a memory budget in bytes"
            ) from error
        return sum(int(s.nbytes()) for cdata, s in storages.items() if cdata not in own)


def _fake(value: Any, requires_grad: bool) -> Any:
    """An argument of its own, of plain sizes."""
    if isinstance(value, torch.Tensor):
        size, stride = [_plain(n) for n in value.shape], [_plain(n) for n in value.stride()]
        made = torch.empty_strided(size, stride, dtype=value.dtype)
        return made.requires_grad_().view_as(made) if requires_grad else made
    return _plain(value)


def _plain(value: Any) -> Any:
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value
