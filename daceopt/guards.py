"""What must hold for a compiled program to stand for a module: checked before each call, in microseconds.

A ``Snapshot`` records a module tree: which submodules it has, their plain attributes (``training`` among them), and
the kind of each parameter and buffer. The tensors themselves are fetched at every call, so their values may change
and they may be replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn.modules import module as nn_module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(
    getattr(nn_module, name)
    for name in (
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
    )
)
_TENSORS = ("_parameters", "_buffers")
# Attributes of ``nn.Module`` itself; hooks and registries are watched in their own way.
_INTERNAL = frozenset(nn.Module().__dict__) - {"training"}
_KINDS = {torch.Tensor: torch.Tensor, nn.Parameter: torch.Tensor}
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_PLAIN_LEAVES = (*_SCALARS, torch.dtype, torch.device, torch.memory_format, torch.layout, slice)


class Snapshot:
    """A module tree as it was; ``read`` gives its present tensors, or None if the tree is no longer the same."""

    def __init__(self, module: nn.Module) -> None:
        named = list(module.named_modules())
        self._names = [name for name, _ in named]
        self._states = [m.__dict__ for _, m in named]
        self._children = [s["_modules"] for s in self._states]
        self._registries = [s[kind] for s in self._states for kind in _TENSORS]
        self._hooks = [s[kind] for s in self._states[1:] for kind in _HOOKS]
        if self._hooks:  # a module without children runs all hooks itself
            self._hooks += _GLOBAL_HOOKS
        self._probes = [_probe(s) for s in self._states]
        self._frozen = [t for s in self._states for t in _plain_tensors(s)]
        self._modules = list(chain.from_iterable(map(dict.values, self._children)))
        self._attributes = _copied(self._read_attributes())
        self._versions = [t._version for t in self._frozen]
        self._keys = list(chain.from_iterable(self._registries))
        tensors = list(chain.from_iterable(map(dict.values, self._registries)))
        self._signature = list(map(_signature, tensors))
        self._ties = _ties(tensors)

    def read(self) -> list[torch.Tensor] | None:
        """All parameters and buffers, in the order of ``position``; None when the snapshot does not hold."""
        try:
            same = (
                list(chain.from_iterable(map(dict.values, self._children))) == self._modules
                and list(chain.from_iterable(self._registries)) == self._keys
                and self._read_attributes() == self._attributes
                and [t._version for t in self._frozen] == self._versions
            )
        except Exception:  # an attribute is gone, or compares in a way of its own: either way it is not the same
            return None
        if not same:
            return None
        tensors = list(chain.from_iterable(map(dict.values, self._registries)))
        tied = all(tensors[a] is tensors[b] for a, b in self._ties)
        return tensors if tied and list(map(_signature, tensors)) == self._signature else None

    def position(self, target: str) -> int:
        """Where ``read`` puts the parameter or buffer with this qualified name; KeyError if there is none."""
        return self._positions()[target]

    def _positions(self) -> dict[str, int]:
        prefixes = [f"{name}." if name else "" for name in self._names for _ in _TENSORS]
        names = [p + key for p, registry in zip(prefixes, self._registries) for key in registry]
        return {name: k for k, name in enumerate(names)}

    def is_hooked(self) -> bool:
        """Whether a submodule has hooks, which compiled code would not run."""
        return any(self._hooks)

    def hooked(self) -> str:
        """The names of the submodules with hooks, for messages."""
        names = [name for name, s in list(zip(self._names, self._states))[1:] if any(s[kind] for kind in _HOOKS)]
        return ", ".join(names) or "all modules (global hooks)"

    def displaced(self) -> str | None:
        """Why the module cannot be traced as it stands: other tensors are in the place of parameters."""
        for name, registry in zip(self._names, self._registries[:: len(_TENSORS)]):
            for key, tensor in registry.items():
                if tensor is not None and not isinstance(tensor, nn.Parameter):
                    where = f"{name}.{key}".lstrip(".")
                    return f"{where} is no nn.Parameter for now; call the module once without functional_call"
        return None

    def difference(self, other: Snapshot) -> str:
        """The first thing that differs between two snapshots, in words."""
        if self._names != other._names or self._modules != other._modules:
            return "the submodules changed"
        for name, keys, a, b in zip(self._names, map(_watched, self._states), self._attributes, other._attributes):
            for key, x, y in zip(keys, a[1:], b[1:]):
                if x is not y and not (isinstance(x, _SCALARS) and x == y):
                    return f"attribute {key!r} of {name or 'the module'} changed"
        if self._signature != other._signature or self._keys != other._keys:
            return "the kind of a parameter or buffer changed"
        return "an attribute of the module changed"

    def _read_attributes(self) -> list[tuple[Any, ...]]:
        # The number of attributes tells when one is added, such as a ``forward`` set on an instance.
        return [(len(s), *probe(s)) for s, probe in zip(self._states, self._probes)]


def _ties(tensors: Sequence[torch.Tensor | None]) -> list[tuple[int, int]]:
    """Pairs of positions that hold one and the same tensor (tied weights)."""
    first: dict[int, int] = {}
    seen = [(k, first.setdefault(id(t), k)) for k, t in enumerate(tensors) if t is not None]
    return [(k, j) for k, j in seen if k != j]


def _signature(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    # A plain tensor in a parameter's place (functional_call) does as well as the parameter.
    kind = _KINDS.get(tensor.__class__, tensor.__class__)
    return kind, tensor.dtype, tensor.shape, tensor.is_cpu, tensor.requires_grad


def _watched(state: Mapping[str, Any]) -> list[str]:
    return [k for k in state if k not in _INTERNAL]


def _probe(state: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    keys = _watched(state)
    if len(keys) < 2:  # itemgetter of one key gives no tuple; every module has ``training``
        keys = keys * 2
    return itemgetter(*keys)


def _copied(attributes: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same values, plain containers copied, so that a change inside one is seen."""
    return [tuple(copy.deepcopy(v) if _is_plain(v) else v for v in values) for values in attributes]


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return isinstance(value, _PLAIN_LEAVES)


def _plain_tensors(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """Tensors kept as ordinary attributes: their values become constants of the program."""
    values = [v for k in _watched(state) for v in (state[k] if type(state[k]) in (list, tuple) else (state[k],))]
    return [v for v in values if isinstance(v, torch.Tensor) and not v.is_inference()]


class Call:
    """The arguments of one call as flat leaves, with a key that tells which program fits.

    ``key`` has, per tensor, its shape, dtype, layout, whether it is on the CPU and whether it requires a gradient;
    other leaves by value.
    """

    __slots__ = ("key", "leaves", "structure")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> None:
        leaves: list[Any] = [*args, *kwargs.values()] if kwargs else list(args)
        structure: Any = (len(args), *kwargs)
        key: list[Any] = []
        for leaf in leaves:
            if leaf.__class__ is torch.Tensor:
                key.append((leaf.shape, leaf.dtype, leaf.layout, leaf.is_cpu, leaf.requires_grad))
            elif isinstance(leaf, (*_PLAIN_LEAVES, torch.Tensor)):
                key.append(_leaf_key(leaf))
            else:
                leaves, spec = pytree.tree_flatten((args, kwargs))
                structure, key = repr(spec), [_leaf_key(x) for x in leaves]
                break
        self.leaves, self.structure = leaves, structure
        self.key = (grad, structure, *key)


def _leaf_key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.layout, leaf.is_cpu, leaf.requires_grad, type(leaf)
    if isinstance(leaf, slice):
        return slice, leaf.start, leaf.stop, leaf.step
    return type(leaf), leaf


def is_transformed() -> bool:
    """Whether something else is looking at the call: a compiler, an exporter, a tracer, functorch, or a tensor-mode."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def unsupported_leaf(leaves: Sequence[Any]) -> str | None:
    """Why the arguments cannot go into a compiled program, or None if they can."""
    for k, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        if type(leaf) not in (torch.Tensor, nn.Parameter):
            return f"argument {k} is a {type(leaf).__name__}; expected a plain torch.Tensor"
        if not leaf.is_cpu:
            return f"argument {k} is on device {leaf.device}; compiled programs run on the CPU"
        if leaf.layout is not torch.strided:
            return f"argument {k} has layout {leaf.layout}; expected a strided tensor"
    return None
