"""A program of the catalogue: its networks, one step of it, and what the step computes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import nn

RATE = 1e-3  # of the plain gradient descent between two steps


class Program(NamedTuple):
    """``step(networks, *inputs)`` does what a user's step does, up to the optimizer, and gives the tensors to compare;
    without one it is a call, in training with the gradients of a fixed sum of its results.

    ``networks`` is the module to optimize, or an ``nn.ModuleDict`` whose members are. ``inputs`` are positional, or by
    name in a dict. ``random`` says why results cannot be compared: numbers that the step draws itself.
    """

    networks: nn.Module
    inputs: Any
    step: Callable[..., Any] | None = None
    random: str = ""


Prepare = Callable[[nn.Module], Any]


def prepared(networks: nn.Module, prepare: Prepare) -> Any:
    """A copy of the networks, each as ``prepare`` gives it."""
    own = copy.deepcopy(networks)
    if not isinstance(own, nn.ModuleDict):
        return prepare(own)
    for name, network in own.items():
        own[name] = prepare(network)
    return own


def members(networks: nn.Module) -> list[Any]:
    """The networks that are optimized, each by itself."""
    return list(networks.values()) if isinstance(networks, nn.ModuleDict) else [networks]


def fixed(networks: nn.Module) -> nn.Module:
    """The same networks whose dropout drops nothing, since no two compilers draw the same masks."""
    for module in networks.modules():
        for name, value in vars(module).items():
            if ("drop" in name and isinstance(value, float)) or (name == "p" and "Drop" in type(module).__name__):
                setattr(module, name, 0.0)
    return networks


def stepped(program: Program, networks: Any, training: bool, inputs: Any = None) -> list[torch.Tensor]:
    """One step's results, in training followed by the gradients that it left; random numbers start at a seed."""
    given = program.inputs if inputs is None else inputs
    if hasattr(networks, "zero_grad"):
        networks.zero_grad(set_to_none=True)
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes as long as a small step: it asks for all devices
    step = program.step or (_trained if training else called)
    with torch.set_grad_enabled(training):
        found = tensors(step(networks, **given) if isinstance(given, dict) else step(networks, *given))
    return [*found, *(p.grad for p in parameters(networks) if p.grad is not None)] if training else found


def called(network: Any, *args: Any, **kwargs: Any) -> Any:
    """A call."""
    return network(*args, **kwargs)


def _trained(network: Any, *args: Any, **kwargs: Any) -> Any:
    found = tensors(network(*args, **kwargs))
    weighted = [(x * _weights(x)).sum() for x in found if x.requires_grad]
    torch.stack([w.double() for w in weighted]).sum().backward()
    return found


def _weights(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, x.numel(), dtype=torch.float64).to(x.dtype).view(x.shape) / x.numel() ** 0.5


def parameters(networks: Any) -> Iterator[nn.Parameter]:
    """All parameters of networks, prepared or not."""
    return networks.parameters() if isinstance(networks, nn.Module) else iter(())


def _buffers(networks: Any) -> Iterator[torch.Tensor]:
    return networks.buffers() if isinstance(networks, nn.Module) else iter(())


def descend(networks: Any) -> None:
    """A plain update, the same for every contender."""
    with torch.no_grad():
        for parameter in parameters(networks):
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=RATE)


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of a result of real numbers, in its own order."""
    result = result.to_tuple() if hasattr(result, "to_tuple") else result
    leaves = pytree.tree_leaves(result, is_leaf=lambda x: hasattr(x, "to_tuple"))
    opened = (y for x in leaves for y in (tensors(x) if hasattr(x, "to_tuple") else [x]))
    return [x for x in opened if isinstance(x, torch.Tensor)]


def widened(value: Any) -> Any:
    """Tensors in double precision."""
    return pytree.tree_map_only(torch.Tensor, _wide, value)


def doubled(network: nn.Module) -> nn.Module:
    """The network in double precision, complex parameters and all."""
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.data = _wide(tensor.data)
    return network


def _wide(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x


@contextmanager
def in_double() -> Iterator[None]:
    """New tensors are of double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def quietly() -> Iterator[None]:
    """Without the advice of others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run(program: Program, networks: Any, training: bool, steps: int = 2) -> list[list[torch.Tensor]]:
    """Results of ``steps`` steps and the buffers that each changes, with an update between two in training."""
    results = []
    for _ in range(steps):
        before = [x.clone() for x in _buffers(networks)]
        found = stepped(program, networks, training)
        changed = (x for x, old in zip(_buffers(networks), before) if not torch.equal(x, old))
        results.append([x.detach().clone() for x in (*found, *changed)])
        if training:
            descend(networks)
    return results


def flat(results: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """All tensors of all steps."""
    return [x for step in results for x in step]
