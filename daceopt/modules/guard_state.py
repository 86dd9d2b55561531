"""Guards of a model's state, replaced by words of memory that change with it.

Dynamo's guards are a tree with nodes for each attribute of each layer (MobileNetV2: 8,000 guards at 3,000 nodes), each
of them somewhere else in memory. A call that has filled the caches with weights reads most of them from memory again,
one after the other, which takes 1 ms. Where an object is reached by dictionaries and tuples alone from one that is
known, what guards say of it holds as long as nobody has written to these dictionaries (``object_words``); tensors,
which change by themselves, are compared in one call. Guards of anything else are checked as before.
"""

from __future__ import annotations

import ast
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from operator import attrgetter, is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeGuard

import torch
from torch import nn

from daceopt.modules import object_words
from daceopt.torch_internals.dynamo_guards import DictGuardManager, state_guards, without_nodes

_FEWEST = 100  # nodes: fewer are checked as quickly one by one
_FIRST = 4  # successful checks before a state is recorded, which takes as long as dozens of them
_CONSTANTS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
_OF_IDENTITY = {"ID_MATCH", "NOT_NONE", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH"}
_OF_VALUE = {*_OF_IDENTITY, "TYPE_MATCH", "EQUALS_MATCH", "LENGTH_CHECK", "FLOAT_IS_NAN", "COMPLEX_IS_NAN"}
_OF_CONTENTS = {*_OF_IDENTITY, "TYPE_MATCH", "LENGTH_CHECK", "DICT_LENGTH", "DICT_CONTAINS", "DICT_VERSION"}
_OF_TENSOR = {*_OF_IDENTITY, "TYPE_MATCH", "TENSOR_MATCH", "DIMENSION_DYNAMIC_MARKING_GUARD"}
_code = attrgetter("__code__")


class Guards:
    """Guards of a program (Dynamo's ``GuardManagerWrapper``) in a frame with these globals: checked, or known to hold
    because they did and the model's state is the same."""

    def __init__(self, guards: Any, scope: dict[str, Any]) -> None:
        self._guards, self._scope = guards, scope
        self._state: State | None = None
        self._checks, self._uses, self._wait = 0, 0, _FIRST

    def hold(self, variables: Mapping[str, Any]) -> bool:
        """Whether they do for a call with these variables."""
        if self._guards.cache_entry is None:  # without an entry they tell objects by the addresses of dead ones
            return False
        state = self._state  # another thread may forget it meanwhile
        if state is not None:
            answer = state.allows(variables)
            if answer is not None:
                self._uses += answer
                return answer
            self._forget()
        if not self._guards.check(variables):
            return False
        self._checks += 1
        if self._checks == self._wait:
            self._state = record(self._guards.root, variables, self._scope)
        return True

    def _forget(self) -> None:
        """The state has changed. One that changes soon is not worth recording, so that takes longer each time."""
        self._wait = _FIRST if self._uses > self._wait else 2 * self._wait
        self._state, self._checks, self._uses = None, 0, 0


class State:
    """Objects that guards reach, as they are where these guards hold."""

    def __init__(self, tree: _Tree, others: Any) -> None:
        """``others``: guards of what can change without a word that tells."""
        self._tree, self._others = tree, others  # the tree keeps what is looked at alive
        self._words = object_words.Words(list(tree.words))
        self._functions, self._codes = tree.functions, list(map(_code, tree.functions))
        self._tensors = list(tree.tensors.values())
        self._tensor_guards = state_guards(*self._tensors) if self._tensors else None

    def allows(self, variables: Mapping[str, Any]) -> bool | None:
        """What the guards say of a call; None where the state is another, so that they have to be checked."""
        tree = self._tree
        if not all(variables.get(name) is value for name, value in tree.variables):
            return None
        if not self._others.check(variables):
            return False
        is_same = (
            self._words.are_unchanged()
            and all(scope.get(name) is value for scope, name, value in tree.globals)
            and all(map(is_, map(_code, self._functions), self._codes))
            and (self._tensor_guards is None or self._tensor_guards.check(*self._tensors))
        )
        return True if is_same else None


def record(root: Any, variables: Mapping[str, Any], scope: dict[str, Any]) -> State | None:
    """The state that a tree of guards is about, which hold for these variables in a frame with the globals ``scope``;
    None where it tells too little."""
    if not object_words.are_known():
        return None
    tree = _Tree()
    for accessor, node in zip(root.get_accessors(), root.get_child_managers()):
        name = _key(accessor, "FrameLocalsGuardAccessor")
        if isinstance(name, str) and isinstance(variables.get(name), nn.Module):
            tree.variables.append((name, variables[name]))
            tree.visit(node, variables[name])
        elif type(accessor).__name__ == "GlobalsGuardAccessor":
            tree.visit_globals(node, scope)
    return State(tree, without_nodes(root, tree.implied)) if len(tree.implied) >= _FEWEST else None


class _Tree:
    """Nodes whose guards all hold as long as what they are about is unchanged, and what that is."""

    def __init__(self) -> None:
        self.implied: dict[int, Any] = {}  # by ``id``, which tells them as long as they are alive
        self.variables: list[tuple[str, object]] = []
        self.globals: list[tuple[dict[str, Any], str, object]] = []
        self.words: dict[int, object] = {}  # by address; of which object
        self.functions: list[FunctionType] = []
        self.tensors: dict[int, torch.Tensor] = {}  # by id: guards of one that comes twice never hold
        self._types: list[type] = []

    def visit_globals(self, node: Any, scope: dict[str, Any]) -> None:
        """Globals are written to all the time, so those that are modules, or dictionaries, are looked up."""
        for accessor, child in zip(node.get_accessors(), node.get_child_managers()):
            name = _key(accessor, "DictGetItemGuardAccessor")
            if isinstance(name, str) and type(scope.get(name)) in (ModuleType, dict):
                self.globals.append((scope, name, scope[name]))
                self.visit(child, scope[name])

    def visit(self, node: Any, value: object) -> bool:
        """Whether ``node`` and all below it are implied; ``value``: what its guards are about, always this object."""
        kinds = _static_kinds(value)
        is_implied = all(type(guard).__name__ in kinds for guard in node.get_leaf_guards())
        if kinds:
            self._watch(value)
        for child, member in self._children(node, value):
            is_implied &= member is not _ANYTHING and self.visit(child, member)
        if is_implied:
            self.implied[id(node)] = node
        return is_implied

    def _children(self, node: Any, value: object) -> Iterator[tuple[Any, object]]:
        """Nodes below and what they are about; ``_ANYTHING`` where that can change without a word that tells."""
        if isinstance(node, DictGuardManager):
            items = list(value.items()) if type(value) is dict else []
            for at, pair in node.get_key_value_managers().items():
                members = items[at] if items else (_ANYTHING, _ANYTHING)
                yield from ((child, member) for child, member in zip(pair, members) if child is not None)
        for accessor, child in zip(node.get_accessors(), node.get_child_managers()):
            yield child, self._member(accessor, value)

    def _member(self, accessor: Any, value: object) -> object:
        kind = type(accessor).__name__
        if _is_dictionary(value):
            return value.get(_key(accessor, "DictGetItemGuardAccessor"), _ANYTHING)
        if type(value) is tuple:
            at = _key(accessor, "TupleGetItemGuardAccessor")
            return value[at] if isinstance(at, int) else _ANYTHING
        if type(value) is FunctionType and kind == "CodeGuardAccessor":
            self.functions.append(value)
            return value.__code__
        own = self._own_dictionary(value)
        if type(value) is ModuleType and own is not None:
            return own.get(str(_key(accessor, "GetAttrGuardAccessor")), _ANYTHING)
        return _ANYTHING if own is None or kind != "GetGenericDictGuardAccessor" else own

    def _own_dictionary(self, value: object) -> dict[str, Any] | None:
        """That of an object, watched; None where it is none that can be."""
        own = getattr(value, "__dict__", None)
        address = object_words.own_dictionary(value) if type(own) is dict else None
        if address is None:
            return None
        self.words[address] = value
        self._watch(own)
        return own

    def _watch(self, value: object) -> None:
        if _is_dictionary(value):
            self.words[object_words.version(value)] = value
        elif isinstance(value, torch.Tensor):
            self.tensors[id(value)] = value
        elif not _is_constant(value):
            self.words[object_words.type_of(value)] = value
            self._types.append(type(value))


_ANYTHING = object()


def _static_kinds(value: object) -> set[str]:
    """Kinds of guards that hold of an object as long as what :class:`State` looks at is the same."""
    if type(value) is dict:
        return _OF_CONTENTS | {"MAPPING_KEYS_MATCH"}
    if type(value) is OrderedDict:  # which may be put in another order without another version
        return _OF_CONTENTS
    if isinstance(value, torch.Tensor):
        return _OF_TENSOR if type(value) in (torch.Tensor, nn.Parameter) else set()
    return _OF_VALUE if _is_constant(value) else {*_OF_IDENTITY, "TYPE_MATCH"}


def _is_dictionary(value: object) -> TypeGuard[dict[Any, Any]]:
    """Not one whose class may read otherwise than what is written."""
    return type(value) in (dict, OrderedDict)


def _is_constant(value: object) -> bool:
    return type(value) in (*_CONSTANTS, CodeType) or (type(value) is tuple and all(map(_is_constant, value)))


def _key(accessor: Any, kind: str) -> object:
    """What an accessor of that kind reads of a container; of another kind, or where its text does not tell, no key."""
    if type(accessor).__name__ != kind:
        return _ANYTHING
    text = re.fullmatch(r"\w+\((?:key=)?(.*?)(?:, framelocals_idx=\d+)?\)", accessor.repr(), re.DOTALL)
    if text is None or kind == "GetAttrGuardAccessor":
        return _ANYTHING if text is None else text[1]
    try:
        return ast.literal_eval(text[1])
    except (SyntaxError, ValueError):
        return _ANYTHING
