"""How many bytes are alive while the nodes of a group run: profiles that groups can be merged from quickly."""

from __future__ import annotations

from typing import NamedTuple

NOWHERE = float("-inf")


class _Node(NamedTuple):
    """Half of the positions of its parent: what is alive at all of them, and most of what is alive at one."""

    added: float
    most: float
    left: _Node | None
    right: _Node | None


class Profile:
    """The bytes alive at each position of an order, for those positions at which a node of the group runs.

    Immutable; :meth:`with_bytes` and :meth:`merge` share what they leave as it is. A segment tree whose nodes exist
    where something was added: merging takes as many steps as both have nodes in common, so all merges of a graph take
    O(n log n) together.
    """

    __slots__ = ("_root", "_size")

    def __init__(self, size: int, root: _Node | None = None):
        self._size, self._root = size, root

    @staticmethod
    def at(position: int, size: int) -> Profile:
        """Of one node, at ``position`` of ``size``."""
        return Profile(size, _leaf(position, 0, size))

    @property
    def peak(self) -> float:
        """The bytes alive where most are."""
        return self._root.most if self._root else NOWHERE

    def with_bytes(self, first: int, last: int, count: float) -> Profile:
        """``count`` more are alive from position ``first`` to ``last``."""
        return Profile(self._size, _add(self._root, 0, self._size, first, last + 1, count))

    def merge(self, other: Profile) -> Profile:
        """Of both groups together, each with what it keeps alive."""
        return Profile(self._size, _merge(self._root, other._root))


def _leaf(position: int, low: int, high: int) -> _Node:
    if high - low == 1:
        return _Node(0, 0, None, None)
    middle = (low + high) // 2
    inner = _leaf(position, low, middle) if position < middle else _leaf(position, middle, high)
    return _Node(0, 0, inner if position < middle else None, None if position < middle else inner)


def _add(node: _Node | None, low: int, high: int, first: int, end: int, count: float) -> _Node | None:
    if end <= low or high <= first:
        return node
    added, most, left, right = node or _Node(0, NOWHERE, None, None)
    if first <= low and high <= end:
        return _Node(added + count, most + count, left, right)
    middle = (low + high) // 2
    left, right = _add(left, low, middle, first, end, count), _add(right, middle, high, first, end, count)
    return _Node(added, added + max(_most(left), _most(right)), left, right)


def _merge(a: _Node | None, b: _Node | None) -> _Node | None:
    if a is None or b is None:
        return a or b
    left, right = _merge(a.left, b.left), _merge(a.right, b.right)
    own = max(a.most - a.added, b.most - b.added) if left is None and right is None else NOWHERE
    return _Node(a.added + b.added, a.added + b.added + max(own, _most(left), _most(right)), left, right)


def _most(node: _Node | None) -> float:
    return node.most if node else NOWHERE
