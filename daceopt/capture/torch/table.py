"""The table of rules: how each ATen operator becomes operator nodes. Families register in ``aten/``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from operator import mul
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

from daceopt.capture.torch import foreach
from daceopt.capture.torch.foreign import OF_PYTORCH
from daceopt.store import identity
from daceopt.store.own_text import home
from daceopt.torch_internals.torch_operators import OpOverload

Rule = Callable[..., Any]

_NOWHERE = 2**62

_RULES: dict[Any, AtenRule] = {}
_COMPLEX: dict[Any, AtenRule] = {}  # for calls with complex tensors
_OF_PACKAGES: dict[str, AtenRule] = {}  # of operators that another package registers, by qualified name

# ATen runs them whole. PyTorch's decomposition of log_ndtr chooses between branches one of which overflows: its
# derivative is NaN there. That of renorm has no derivative in half precision. That of linspace computes integers in
# float32.
_BOUNDS = ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
_LEFT = ("renorm", "special_log_ndtr", *(f"{name}.{kind}" for name in ("linspace", "logspace") for kind in _BOUNDS))


@dataclass(frozen=True)
class AtenRule:
    """A rule, and whose derivative holds: that of what the rule builds (``"own"``), or PyTorch's formula, traced."""

    rule: Rule
    derivative: str


def translates(*names: str, derivative: str = "own", complexes: bool = False) -> Callable[[Rule], Rule]:
    """Register the rule of ATen operators, by name and overload: ``@translates("add.Tensor")``; of those of a package,
    which need not be imported yet, by qualified name: ``@translates("torchvision::nms")``.

    The rule is called as ``rule(t, ...)`` with a :class:`~daceopt.capture.torch.translation.Translation` and the
    operator's arguments by the names of its schema, defaults filled in: arrays for tensors, ints or SymPy expressions
    for sizes, Python values for the rest. It returns an array, or a tuple of arrays (None where nothing reads that
    result), of exactly the dtype and shape promised (``t.promised``). It raises Unsupported, before it adds anything,
    for what it cannot do; the operator is then called in ATen.

    ``derivative="own"`` says that differentiating what the rule builds gives PyTorch's gradient, also at ties, bounds
    and NaN. With ``"aten"`` the node stays whole until after differentiation, and PyTorch's own formula is used.

    ``complexes``: the rule is for calls with complex tensors, and for no others. Their arrays have real and imaginary
    parts along one more axis, the last.
    """
    if derivative not in ("own", "aten"):
        raise ValueError(f"derivative={derivative!r}; expected 'own' or 'aten'")

    def register(rule: Rule) -> Rule:
        for name in names:
            entry = AtenRule(rule, derivative)
            if "::" in name and name.partition("::")[0] not in OF_PYTORCH:
                _OF_PACKAGES[name] = entry
            else:
                (_COMPLEX if complexes else _RULES)[overload(name)] = entry
        return rule

    return register


def foreign_source() -> str:
    """What stands for the rules that users registered; "" for none."""
    tables: dict[str, dict[Any, AtenRule]] = {"": _RULES, "complex": _COMPLEX, "package": _OF_PACKAGES}
    users = [(kind, str(target), rule) for kind, t in tables.items() for target, rule in t.items() if _is_foreign(rule)]
    return identity.text_of(users) if users else ""


def _is_foreign(entry: AtenRule) -> bool:
    """An own rule over a user's function, as ``pointwise`` makes one, is the user's."""
    closure = [c.cell_contents for c in getattr(entry.rule, "__closure__", None) or ()]
    return any(not identity.is_known(home(f)) for f in (entry.rule, *filter(callable, closure)))


def overload(name: str) -> OpOverload:
    """``"add.Tensor"`` -> ``torch.ops.aten.add.Tensor``; other namespaces as ``"daceopt::with_gradient.default"``."""
    namespace, _, rest = name.rpartition("::")
    packet, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), variant or "default")


def entry_of(target: object, complexes: bool = False) -> AtenRule | None:
    """The rule of an overload, or None; ``complexes``: for a call with complex tensors."""
    _load()
    if (entry := (_COMPLEX if complexes else _RULES).get(target)) is not None or complexes:
        return entry
    return _OF_PACKAGES.get(target.name()) if isinstance(target, OpOverload) else None


def rules(complexes: bool = False) -> dict[Any, AtenRule]:
    """All rules; ``complexes``: those for calls with complex tensors."""
    _load()
    return dict(_COMPLEX if complexes else _RULES)


@cache
def _load() -> None:
    for module in iter_modules([str(Path(__file__).with_name("aten"))]):
        import_module(f"{__package__}.aten.{module.name}")


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of operators that have no rule and are not left to ATen."""
    from daceopt.torch_internals.decompositions import core_aten_decompositions

    _load()
    unpooled = {torch.ops.aten.max_unpool2d.default: _max_unpool2d, torch.ops.aten.max_unpool3d.default: _max_unpool3d}
    every = {**foreach.decompositions(), **core_aten_decompositions(), **unpooled}
    excluded = [overload(name) for name in _LEFT]
    return {target: fn for target, fn in every.items() if target not in _RULES and target not in excluded}


def _max_unpool2d(self: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int | torch.SymInt]) -> torch.Tensor:
    """PyTorch's decomposition, in the memory format of the operator's own kernel."""
    from daceopt.torch_internals.decompositions import max_unpool2d, suggest_memory_format

    result = max_unpool2d(self, _in_plane(indices, output_size), output_size)
    return result.contiguous(memory_format=suggest_memory_format(self))


def _max_unpool3d(
    self: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int | torch.SymInt], *window: object
) -> torch.Tensor:
    from daceopt.torch_internals.decompositions import max_unpool3d

    return max_unpool3d(self, _in_plane(indices, output_size), output_size, *window)


def _in_plane(indices: torch.Tensor, output_size: Sequence[int | torch.SymInt]) -> torch.Tensor:
    """An index outside of its plane must not reach another one: it becomes one that is nowhere."""
    inside = (indices >= 0) & (indices < reduce(mul, output_size))
    return torch.where(inside, indices, _NOWHERE)
