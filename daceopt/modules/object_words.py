"""Words of memory by which CPython tells that an object has changed, read without touching anything around them.

Each dictionary has a version, which every write changes (PEP 509); each object has a pointer to its type, and most have
one to their own dictionary. Where these words are is tried out once a process; on a Python that has them elsewhere, or
no longer, :func:`are_known` is false and nobody reads them. Objects must be alive while their words are read.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

_WORD = 8  # bytes
_SPACE = 1 << 48  # bytes that a process can address
_VERSION, _TYPE, _DICTIONARY = 24, 8, -24  # bytes from an object's address, which ``id`` gives


class Words:
    """Words at these addresses, and what they were."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self._places = np.array(addresses, dtype=np.int64) // _WORD - 1  # the memory begins with the second word
        self._before = self._read()

    def are_unchanged(self) -> bool:
        return self._read() == self._before

    def _read(self) -> bytes:
        return _memory().take(self._places).tobytes()


def version(dictionary: dict[Any, Any]) -> int:
    """The address of what changes with every write to a dictionary."""
    return id(dictionary) + _VERSION


def type_of(value: object) -> int:
    """The address of an object's type."""
    return id(value) + _TYPE


def own_dictionary(value: object) -> int | None:
    """The address of the pointer to an object's own dictionary, ``value.__dict__``; None where that is not known."""
    offset = type(value).__dictoffset__
    address = id(value) + (offset if offset > 0 else _DICTIONARY)
    return address if _word(address) == id(value.__dict__) else None


@cache
def are_known() -> bool:
    """Whether this Python has the words where they are looked for, and changes them."""
    is_usual = sys.implementation.name == "cpython" and struct.calcsize("P") == _WORD
    return is_usual and getattr(sys, "_is_gil_enabled", lambda: True)() and all(_changes())


def _changes() -> Iterator[bool]:
    """Whether each kind of change shows."""
    for write in _WRITES:
        for kind in (dict, OrderedDict):
            value = kind({k: object() for k in range(4)})
            yield _shows(version(value), partial(write, value))
    one, other = _One(), _Other()
    own, address = one.__dict__, own_dictionary(one)
    for k in range(100):  # as often as it takes Python to have a quick way
        yield _shows(version(own), partial(one.set, object()))
        yield _shows(version(own), partial(own.__setitem__, "b", k + 1000))
    if address is None:
        yield False
        return
    yield _shows(address, partial(setattr, one, "__dict__", dict(own)))
    yield _shows(type_of(other), partial(setattr, other, "__class__", _One))


class _One:
    def __init__(self) -> None:
        self.a: object = None

    def set(self, value: object) -> None:
        self.a = value


class _Other:
    pass


_WRITES: tuple[Callable[[dict[int, object]], object], ...] = (
    lambda d: d.__setitem__(0, object()),
    lambda d: d.__setitem__(9, object()),
    lambda d: d.__delitem__(0),
    lambda d: d.update({0: object()}),
    lambda d: d.setdefault(9),
    lambda d: d.pop(0),
    lambda d: d.popitem(),
    lambda d: d.clear(),
    lambda d: d.__ior__({1: object()}),
)


def _shows(address: int, change: Callable[[], object]) -> bool:
    words = Words([address])
    change()
    return not words.are_unchanged()


def _word(address: int) -> int:
    return int(_memory()[address // _WORD - 1])


@cache
def _memory() -> np.ndarray:
    """All of the process's memory as words, from the second one on: an array at address 0 would be a new one."""
    space: Any = (ctypes.c_char * (_SPACE - _WORD)).from_address(_WORD)  # a buffer, which NumPy's types do not know
    return np.frombuffer(space, np.uint64)
