"""What a program of Dynamo depends on beyond what Dynamo guards, as further guards of that program.

Dynamo takes the methods of classes for given, does not look at where a tensor is in autograd's graph, takes the
absence of a key in a dictionary keyed by tensors, and in the environment, for settled, and knows no difference between
the precisions "high" and "medium" of products, nor between values that are equal (``spelling.py``).
"""

from __future__ import annotations

import functools
import os
import re
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from daceopt.capture.torch import spelling
from daceopt.torch_internals import cuda_state
from daceopt.torch_internals.dynamo_guards import DictGuardManager, GlobalStateSource, Guard, Source, is_tracing
from daceopt.torch_internals.dynamo_tracing import (
    ObservedAttributeError,
    ObservedException,
    ObservedLookupError,
    ObservedUserStopIteration,
    current_translator,
)

Check = Callable[[Any], bool]

_TORCH = str(Path(torch.__file__).parent)
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)
_OS = os.getenv.__code__.co_filename

_SAVED_HOOKS = "AUTOGRAD_SAVED_TENSORS_HOOKS"  # of which a program asks in each call (``runtime/saved_arrays.py``)
_MISSED = "daceopt_missed"
_NO_ATTRIBUTE = re.compile(r"'(\w+)\\?' object has no attribute ")
_TABLES = ("_parameters", "_buffers", "_modules")  # in which a module looks for attributes, too

READ_OF_TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "is_leaf": lambda t: t.is_leaf,
    "grad_fn": lambda t: t.grad_fn is None,
    "_base": lambda t: t._base is None,
}
"""What a program may read of a tensor argument that Dynamo reads while it traces, and never again."""


def install() -> None:
    """Add the conditions of the program that Dynamo is making in this thread, if it is."""
    if not is_tracing():
        return
    output: Any = current_translator().output
    codes = frozenset(output.tracing_context.traced_code)
    output.guards.add(condition(functools.partial(_check_surroundings, codes)))
    output.guards.add(condition(_check_precision))
    output.guards.add(condition(spelling.check))
    read = [READ_OF_TENSORS[name] for name in sorted(_names(codes) & READ_OF_TENSORS.keys())]
    for guard in list(output.guards):
        if guard.create_fn_name() == _SAVED_HOOKS:
            output.guards.inner.remove(guard)
        elif guard.create_fn_name() == "TENSOR_MATCH" and read:
            output.guards.add(condition(functools.partial(_check_tensor, read), guard.originating_source))


def note_exception(output: object, raised: ObservedException, code: types.CodeType) -> None:
    """Keep, with the trace in which the code met an exception, in which objects something may have been missing."""
    if isinstance(raised, ObservedUserStopIteration) or _MISSED in vars(raised):  # the end of a loop; further out
        return
    setattr(raised, _MISSED, True)
    missed = vars(output).setdefault(_MISSED, {})
    if isinstance(raised, ObservedLookupError):
        if code.co_filename != _OS:  # the environment is guarded as a whole
            missed["key"] = lambda owner: isinstance(owner, dict)
    elif isinstance(raised, ObservedAttributeError) and (of := _NO_ATTRIBUTE.search(str(raised.args))):
        missed[of[1]] = lambda owner: of[1] in {c.__name__ for c in type(owner).__mro__}
    else:
        missed["anything"] = lambda owner: True


def condition(add: Callable[[Any, Guard], None], source: Source | None = None) -> Guard:
    """What ``add(builder, guard)`` adds to the guards of a program, of a source or of all of it."""

    def add_guard(builder: object, guard: Guard) -> None:  # Dynamo asks for its name and code
        add(builder, guard)

    return Guard(source or GlobalStateSource(), add_guard)


def _names(codes: Iterable[types.CodeType]) -> set[str]:
    """The names of attributes that the user's code reads, as far as they are in it."""
    return {n for c in _own_codes(codes) for n in (*c.co_names, *c.co_consts) if isinstance(n, str)}


def _own_codes(codes: Iterable[types.CodeType]) -> list[types.CodeType]:
    return [c for c in codes if not c.co_filename.startswith(_TORCH)]


def _check_tensor(read: list[Callable[[torch.Tensor], Any]], builder: Any, guard: Guard) -> None:
    expected = [get(builder.get(guard)) for get in read]

    def is_unchanged(tensor: torch.Tensor) -> bool:
        return [get(tensor) for get in read] == expected

    text = f"{guard.name} stands elsewhere in autograd's graph"
    builder.get_guard_manager(guard).add_lambda_guard(is_unchanged, [text], None)


def _check_precision(builder: Any, guard: Guard) -> None:
    get = cuda_state.matmul_precision
    precision, text = get(), "the precision of products of float32 has changed"
    builder.guard_manager.root.add_lambda_guard(lambda _: get() == precision, [text], None)


def _check_surroundings(codes: frozenset[types.CodeType], builder: Any, guard: Guard) -> None:
    guarded = [(g, builder.get(g)) for g in builder.check_fn_manager.output_graph.guards if _has_value(g)]
    if any(_holds_tensors(value) for _, value in guarded):
        _check_identity(builder, [(g, v) for g, v in guarded if isinstance(v, torch.Tensor)])
    if missed := vars(builder.check_fn_manager.output_graph).get(_MISSED):
        _check_absence(builder, missed.values(), guarded)
    classes = {v if isinstance(v, type) else type(v) for _, v in guarded}
    methods = list(dict.fromkeys(_methods(classes, codes)))
    if methods:
        builder.guard_manager.root.add_lambda_guard(_same_methods(methods), ["a method of a class was replaced"], None)
    if any(c.co_filename == _OS for c in codes):
        variables: dict[bytes, bytes] = vars(os.environ)["_data"]  # as it is compared without decoding it
        expected = dict(variables)
        text = "an environment variable has changed"
        builder.guard_manager.root.add_lambda_guard(lambda _: variables == expected, [text], None)


def _check_identity(builder: Any, tensors: Iterable[tuple[Guard, torch.Tensor]]) -> None:
    for guard, tensor in tensors:
        ref = weakref.ref(tensor)
        text = f"{guard.name} is another tensor, and some tensors are keys"
        builder.get_guard_manager(guard).add_lambda_guard(lambda x, ref=ref: ref() is x, [text], None)


def _check_absence(builder: Any, missed: Iterable[Check], guarded: Sequence[tuple[Guard, object]]) -> None:
    """What is not there is guarded where its absence may have decided: an exception was met, and handled."""
    modules = {id(v): v for _, v in guarded if isinstance(v, nn.Module)}
    owners = {id(vars(m)[table]): m for m in modules.values() for table in _TABLES}
    suspects = [(g, v) for g, v in guarded if any(may(v) or may(owners.get(id(v))) for may in missed)]
    for guard, value in suspects:
        if isinstance(value, dict):
            _check_keys(builder, guard, lambda owner: owner)
        elif isinstance(getattr(value, "__dict__", None), dict):
            _check_keys(builder, guard, vars)
    classes = dict.fromkeys(c for _, v in suspects for c in type(v).__mro__ if not _is_library(c))
    names = {c: frozenset(vars(c)) for c in classes}
    text = "an attribute was added to a class, or taken away"
    builder.guard_manager.root.add_lambda_guard(lambda _: all(vars(c).keys() == names[c] for c in names), [text], None)


def _is_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("builtins", "torch")


def _check_keys(builder: Any, guard: Guard, table: Callable[[Any], dict[Any, Any]]) -> None:
    if isinstance(builder.get_guard_manager(guard), DictGuardManager):
        return  # it checks all keys, in their order, and takes no other guards
    expected = table(builder.get(guard)).copy().keys()
    text = f"something was added to {guard.name}, or taken away"
    builder.get_guard_manager(guard).add_lambda_guard(lambda owner: table(owner).keys() == expected, [text], None)


def _has_value(guard: Guard) -> bool:
    return guard.create_fn_name() in ("TYPE_MATCH", "CLASS_MATCH", "ID_MATCH", "TENSOR_MATCH", "DICT_KEYS_MATCH")


def _holds_tensors(value: object) -> bool:
    return isinstance(value, (dict, set, frozenset)) and any(isinstance(k, torch.Tensor) for k in value)


def _same_methods(methods: Sequence[tuple[type, str, Any]]) -> Check:
    """One expression, since it is looked at in every call. A class method is bound anew at each look, and a descriptor
    of some other kind may give whatever it likes: what is in the class is compared there."""
    values: dict[str, Any] = {"standing": _standing}
    terms = []
    for k, (cls, name, method) in enumerate(methods):
        is_bound, is_stable = isinstance(method, types.MethodType), getattr(cls, name) is method
        look = f"c{k}.{name}" if is_bound or is_stable else f"standing(c{k}, {name!r})"
        values |= {
            f"c{k}": cls,
            f"m{k}": method.__func__ if is_bound else method if is_stable else _standing(cls, name),
        }
        terms.append(f"{look}{'.__func__' if is_bound else ''} is m{k}")
    return eval(f"lambda _, {', '.join(f'{n}={n}' for n in values)}: {' and '.join(terms)}", values)


def _standing(cls: type, name: str) -> object:
    """What a class has under a name, itself or above it, without asking a descriptor."""
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)


def _methods(classes: Iterable[type], codes: frozenset[types.CodeType]) -> Iterator[tuple[type, str, Any]]:
    """Where the traced methods of these classes were found: on a class itself, or by ``super()`` on one above it."""
    for cls in classes:
        names = {"__call__"} if issubclass(cls, nn.Module) else set()
        for base in cls.__mro__:
            traced = {n for n, a in _own(base).items() if not codes.isdisjoint(_codes(a))}
            yield from ((base, n, getattr(base, n)) for n in sorted(traced & names))
            names |= traced
        yield from ((cls, name, getattr(cls, name)) for name in sorted(names))


def _own(cls: type) -> dict[str, Any]:
    return {} if cls.__module__ == "builtins" else dict(vars(cls))


def _codes(attribute: object) -> Iterator[types.CodeType]:
    """The code behind a method, a property, or another descriptor that calls a function, and what that wraps."""
    for name in ("__func__", "fget", "func"):
        if isinstance(attribute, _DESCRIPTORS):
            attribute = getattr(attribute, name, attribute)
    while attribute is not None:
        if isinstance(attribute, types.FunctionType):
            yield attribute.__code__
        attribute = getattr(attribute, "__dict__", {}).get("__wrapped__")


def check_same(call: Callable[[], Any], value: object, builder: Any, guard: Guard) -> None:
    """The guard that what Python answered while Dynamo traced is what it answers now."""

    def same(_: object) -> bool:
        now = call()
        return now is value or repr(now) == repr(value)

    # last, so that it is asked in the calls only that would ask it
    builder.guard_manager.root.add_epilogue_lambda_guard(same, ["a cached function or a logger says else"], None)
