"""What somebody asks about storing or recomputing: a policy, arrays by name, and a budget in bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from daceopt.autodiff.storage_predicates import NAMED, Predicate, describe
from daceopt.errors import DaceoptError, did_you_mean
from daceopt.ir.control.region import Region
from daceopt.ir.data.arrays import SEED
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.nodes.library import HostCall

POLICIES = ("recompute", "store")


@dataclass(frozen=True)
class Storage:
    """``policy``: the rule for what nothing else decides (:mod:`daceopt.autodiff.forwarding`).

    ``store`` and ``recompute``: names of forward arrays, or of modules that they come from, with ``*``, ``?`` and
    ``[...]`` as in file names; predicates of arrays, or the names of some (:mod:`daceopt.autodiff.storage_predicates`).
    ``budget``: the bytes that the arrays of a step may take at once, beside what the caller
    gives and gets; ``by``: who chooses then (:mod:`daceopt.autodiff.storage_choice`), in at most ``seconds``, for these
    ``sizes`` of symbols. ``joined``: forward and backward are one program. ``makes_room``: as many bytes as the
    gradients take are not saved (:mod:`daceopt.autodiff.room_for_gradients`), where nothing else is asked for.
    """

    policy: str = "recompute"
    store: tuple[str | Predicate, ...] = ()
    recompute: tuple[str | Predicate, ...] = ()
    budget: int | None = None
    by: str = "best"
    seconds: float = 5.0
    sizes: tuple[tuple[str, int], ...] = ()
    joined: bool = False
    makes_room: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy {self.policy!r} is not one of {POLICIES}")

    @property
    def is_thrifty(self) -> bool:
        """Are bytes saved for the gradients? Not where somebody has said what is stored."""
        return self.makes_room and self.policy == "recompute" and not (self.store or self.is_late)

    @property
    def is_late(self) -> bool:
        """Does somebody care about memory, so that what is computed again must not be computed before it is read?"""
        return bool(self.recompute) or self.budget is not None


DEFAULT = Storage()


@dataclass(frozen=True)
class Pins:
    """Forward arrays of which it is settled that the backward reads them from memory, or computes them again."""

    store: frozenset[str] = frozenset()
    recompute: frozenset[str] = frozenset()


def pins(
    graph: Graph,
    storage: Storage,
    arrays: Collection[str],
    fixed: Callable[[str], str | None],
    is_elementwise: Callable[[Node], bool],
) -> Pins:
    """The arrays that ``storage`` names, as buffers among ``arrays``.

    ``fixed(array)`` says why it cannot be computed again, or None. Raises DaceoptError for a name that is neither an
    array nor a module, with the nearest one; for an array that is asked to be both; and, where it is named in full, for
    one that cannot be computed again.
    """

    def choose(option: str, which: str | Predicate) -> set[str]:
        predicate = NAMED.get(which) if isinstance(which, str) else which
        if predicate is None:
            return _matching(graph, arrays, option, str(which))
        produced = (n for n in arrays if n != SEED and graph.producers(n))
        return {n for n in produced if predicate(describe(graph, n, is_elementwise))}

    store = {n for which in storage.store for n in choose("store", which)}
    again: set[str] = set()
    for text in storage.recompute:
        chosen = choose("recompute", text)
        reasons = {n: why for n in chosen if (why := fixed(n)) is not None}
        if isinstance(text, str) and graph.has(text) and reasons:
            raise DaceoptError(f"recompute={text!r}: {next(iter(reasons.values()))}")
        again |= chosen - reasons.keys()
    if both := sorted(store & again):
        raise DaceoptError(f"{both[0]} is named by store and by recompute; expected one of them")
    return Pins(frozenset(store), frozenset(again))


def _matching(graph: Graph, arrays: Collection[str], option: str, text: str) -> set[str]:
    matches = {
        graph.root(name)[0]
        for name in graph.arrays()
        if graph.root(name)[0] in arrays
        and (fnmatchcase(name, text) or any(_is_module(o, text) for o in graph.origins.get(name, ())))
    }
    if matches:
        return matches
    names = sorted({*arrays, *NAMED, *(o for name in arrays for o in graph.origins.get(name, ()))})
    raise DaceoptError(
        f"{option}={text!r}: no array of the forward pass, and no module that one comes from, is called so"
        f"{did_you_mean(text, names)}"
    )


def _is_module(origin: str, text: str) -> bool:
    """Is ``origin`` the module that ``text`` names, or inside of it?"""
    return fnmatchcase(origin, text) or fnmatchcase(origin, f"{text}.*")


def why_not_again(graph: Graph, node: Node) -> str | None:
    """Why ``node`` cannot run a second time in the backward, or None: a call of Python may have effects, or draw random
    numbers of its own."""
    if _calls_python(node):
        return f"{getattr(node, 'label', node)} calls Python, which may not give the same twice"
    return None


def _calls_python(node: Node) -> bool:
    if isinstance(node, Region):
        return any(_calls_python(inner) for body in node.bodies for inner in body.nodes())
    return isinstance(node, HostCall) or (isinstance(node, Operator) and node.domain == "aten")
