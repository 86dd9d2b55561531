"""Calls of a module that eager PyTorch runs faster than anything else, told without guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, is_grad_enabled, nn

SMALL_CALLS = 16
"""Kinds of calls that need no guards, because eager PyTorch runs them fastest."""

LOOKS = 1000
"""One in so many of them is looked at by its guards."""

Forward = Callable[..., Any]
Key = tuple[Any, ...]


class SmallCalls:
    """Calls of a module that eager PyTorch runs faster than anything else, told by what is told fast. A call that is
    taken for one of them and is none has its numbers all the same, from the module's own forward."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}  # what a call is told by -> its pieces
        self._weighed: dict[Any, int] = {}  # the same -> how often it might have been one of them
        self._left = LOOKS

    def add(self, key: Key | None, pieces: int) -> bool:
        """Let calls like this one be among them. False where they cannot be told, or there are enough."""
        if len(self.known) >= SMALL_CALLS or key is None:
            return False
        self.known[key] = pieces
        return True

    def is_due(self, key: Key | None) -> bool:
        """Whether it is to be found out if a call is one of them: a call like it might have been."""
        return self._weighed.get(key) == 1

    def weigh(self, key: Key | None) -> None:
        """Note a call that may be one of them."""
        if key is not None and (key in self._weighed or len(self._weighed) < SMALL_CALLS):
            self._weighed[key] = self._weighed.get(key, 0) + 1

    def cover(
        self, original: Forward, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> int:
        """The pieces of a call that is one of them; of another one 0. One in many is not taken for one, and adds itself
        again: what the module is otherwise may have changed."""
        self._left -= 1
        if not self._left:
            self._left = LOOKS
            self.known.clear()
            self._weighed.clear()
        return self.known.get(_likeness(original, module, args, kwargs), 0)


def key_of(original: Forward, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Key | None:
    """What a call that may be one of them is told by; None where that is not all that it is told by."""
    is_told = all(map(_is_told, (*args, *kwargs.values())))
    return _likeness(original, module, args, kwargs) if is_told else None


_TOLD = (Tensor, bool, int, float, str, type(None))
_NAMES = (str, int, float, type(None))
_CONTAINERS = (dict, list, tuple)  # their subclasses may hold more than their members
_DEEPEST = 3  # containers in one another
_MOST = 64  # members of a container


def _is_told(argument: object, depth: int = 0) -> bool:
    if argument.__class__ not in _CONTAINERS:
        return isinstance(argument, _TOLD)
    if isinstance(argument, dict) and not all(map(_is_name, argument)):
        return False
    members = _members_of(argument)
    return depth < _DEEPEST and len(members) <= _MOST and all(_is_told(m, depth + 1) for m in members)


def _is_name(key: object) -> bool:
    """Whether a key of a dict may be kept, which keeps nothing else alive then."""
    return key.__class__ in _NAMES or (type(key) is tuple and all(map(_is_name, key)))


def _members_of(container: Any) -> Any:
    return container.values() if container.__class__ is dict else container


def _likeness(original: Forward, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Key:
    key = [original, module.training, is_grad_enabled()]
    for a in args:  # a comprehension would be one more call, of which there are few enough to be seen
        key.append(a.shape if isinstance(a, Tensor) else _kind(a))
    for name, a in kwargs.items():
        key += [name, a.shape if isinstance(a, Tensor) else _kind(a)]
    return tuple(key)


def _kind(argument: object, depth: int = 0) -> object:
    """Of what is no tensor its class; of a container of few also its keys, and what its members are told by."""
    if argument.__class__ not in _CONTAINERS or depth == _DEEPEST:
        return argument.__class__
    members = _members_of(argument)
    if len(members) > _MOST:
        return argument.__class__
    keys = tuple(argument) if isinstance(argument, dict) else ()
    return argument.__class__, keys, tuple([m.shape if isinstance(m, Tensor) else _kind(m, depth + 1) for m in members])
