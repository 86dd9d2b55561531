"""Grouping sub-graphs by the patterns of GraphTurbo, algorithm 2: straight, diamond and branch, to a fixpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from daceopt.ir.fusion.clusters import Clusters
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.library import Contraction
from daceopt.transformations.instances._cuts import Cut, Cuts
from daceopt.transformations.instances._live_bytes import Profile
from daceopt.transformations.instances._splitting_information import (
    AxisSplit,
    Budget,
    Way,
    best_of,
    finer,
    information,
    lighter,
)

Allowed = Callable[[AxisSplit, AxisSplit, AxisSplit], bool]
"""May two groups be merged: the splits of the producer, of the consumer and of both, along one axis."""

FEW = 1000
"""Weights are hardly any where they are this part of what is alive, or less."""

Item = tuple[int, int]
"""A node and one of its ways to be cut; items that are cut together have one leader."""


@dataclass(frozen=True)
class Use:
    """What a group does with an array: does it write it, and from where to where does it read it, how often."""

    writer: int | None
    first: int
    last: int
    readers: int

    def join(self, other: Use) -> Use:
        """That of two groups together."""
        writer = self.writer if self.writer is not None else other.writer
        first, last = min(self.first, other.first), max(self.last, other.last)
        return Use(writer, first, last, self.readers + other.readers)


@dataclass
class Group:
    """A sub-graph: its nodes' arrays, the ways to split all of them, its bytes over time and its splitting information:
    a split for each way that there is room for and that the rules allowed (None: not at all). ``scale``: how much what
    it writes has been up- or down-sampled since the network began, where most. ``weights``: bytes that each instance
    reads as a whole."""

    count: int
    scale: Fraction
    weights: int
    uses: dict[str, Use]
    ways: dict[Item, Way]
    profile: Profile
    information: dict[Item | None, AxisSplit]

    @property
    def best(self) -> AxisSplit | None:
        """Equation 1."""
        return best_of(self.information.values())


@dataclass(frozen=True)
class _Trial:
    """What two groups would be together; ``joins``: way of the first -> that of the second with which it is one."""

    group: Group
    joins: dict[Item, Item]


class Merging:
    """Sub-graphs that start as single nodes. ``trials`` counts how often two were looked at together."""

    def __init__(self, graph: Graph, planned: Sequence[Cuts], budget: Budget):
        self.trials = 0
        self._graph, self._planned, self.budget = graph, planned, budget
        self._size = len(planned)
        self._maker = {name: k for k, cuts in enumerate(planned) for name in cuts.writes}
        self._readers: dict[str, list[int]] = {}
        for k, cuts in enumerate(planned):
            for name in cuts.reads:
                self._readers.setdefault(name, []).append(k)
        self._overwritten = {k: self._dying(k) for k in range(self._size)}
        self._scale: list[Fraction] = []
        for cuts in planned:
            before = (self._scale[self._maker[name]] for name in cuts.reads if name in self._maker)
            self._scale.append(max(before, default=Fraction(1)) * cuts.sampling)
        self.clusters: Clusters[int] = Clusters({k: self._after(k) for k in range(self._size)})
        self._leader: dict[Item, Item] = {}
        self._refused: set[tuple[int, int, int, int]] = set()
        self.groups = {k: self._single(k) for k in range(self._size)}

    def _after(self, k: int) -> list[int]:
        return list(dict.fromkeys(r for name in self._planned[k].writes for r in self._readers.get(name, ())))

    def _dying(self, k: int) -> str | None:
        """What node ``k`` may write its result over: it is the last that reads it."""
        overwritten = (n for n in self._planned[k].overwrites if n in self._maker and self._readers[n][-1] == k)
        return next((name for name in overwritten if not self._graph.is_kept(name)), None)

    # ---------------------------------------------------------------- single nodes

    def _single(self, k: int) -> Group:
        cuts = self._planned[k]
        uses = {name: Use(None, k, k, 1) for name in cuts.reads if self._counts(name, cuts)}
        uses |= {name: Use(k, k, k, 0) for name in cuts.writes}
        profile = Profile.at(k, self._size)
        for name, use in uses.items():
            profile = profile.with_bytes(*self._alive(name, use), self._bytes(name))
        ways = {(k, c): self._way(cut) for c, cut in enumerate(cuts.ways)}
        ways_found = information(ways, profile.peak, 1, self.budget)
        return Group(1, self._scale[k], self._weights(cuts), uses, ways, profile, ways_found)

    def _weights(self, cuts: Cuts) -> int:
        """What is given and goes not along the outermost axis; of a table from which a kernel picks, what it picks."""
        sizes = (self._bytes(name) for name in cuts.reads if not self._counts(name, cuts))
        most = self._bytes(cuts.writes[0]) if isinstance(cuts.node, KernelNode) and cuts.writes else None
        return sum(size if most is None else min(size, most) for size in sizes)

    def _counts(self, name: str, cuts: Cuts) -> bool:
        """Activations do; weights pass through a buffer of fixed size (section 2.2)."""
        return name in self._maker or name in cuts.streamed

    def _way(self, cut: Cut) -> Way:
        halo = sum(link.halo / self._extent(name, link.axis) for name, link in cut.links.items())
        whole = sum(self._bytes(name) for name in cut.whole if name in self._maker)
        return Way(cut.extent, cut.axis, halo, whole)

    def _extent(self, name: str, axis: int) -> int:
        return int(self._graph.shape(name)[axis])

    def _bytes(self, name: str) -> int:
        size = self._graph.size(name)
        return int(size) * self.budget.machine.itemsize(self._graph.dtype(name)) if isinstance(size, int) else 0

    def _alive(self, name: str, use: Use) -> tuple[int, int]:
        """From which position to which a group has the array; to the end where others read it."""
        inside = use.readers == len(self._readers.get(name, ())) and not self._graph.is_kept(name)
        last = use.last - 1 if inside and self._overwritten[use.last] == name else use.last
        if use.writer is None:
            return use.first, last
        return use.writer, last if inside else self._size

    def arrays(self) -> Iterator[tuple[str, int, bool]]:
        """(array that is computed, bytes, whether one group that fits writes it and alone reads it)"""
        for name, maker in self._maker.items():
            leader = self.clusters.leader(maker)
            alone = all(self.clusters.leader(k) == leader for k in self._readers.get(name, ()))
            yield name, self._bytes(name), alone and self.groups[leader].best is not None

    # ---------------------------------------------------------------- two groups together

    def attempt(self, a: int, b: int, allowed: Allowed) -> _Trial | None:
        """The group of both, the producer ``a`` first, split in those ways that are ``allowed`` by the splits of the
        first, the second and both; None where there are none, or the result is cyclic."""
        self.trials += 1
        if self.clusters.obstacle(a, b) is not None:
            return None
        first, second = self.groups[a], self.groups[b]
        joins = dict(self._join(a, b))
        ways = {into: first.ways[into].then(second.ways[way]) for into, way in joins.items()}
        profile, uses = self._together(first, second)
        count = first.count + second.count
        splits = {
            into: split
            for into, split in information(ways, profile.peak, count, self.budget).items()
            if _is_allowed(allowed, first.information.get(into), second.information.get(joins.get(into)), split)
        }
        if not splits or _is_finer(best_of(splits.values()), first.best, second.best):
            return None
        scale = max(first.scale, second.scale)
        return _Trial(Group(count, scale, first.weights + second.weights, uses, ways, profile, splits), joins)

    def _join(self, a: int, b: int) -> Iterator[tuple[Item, Item]]:
        """Ways of ``a`` and of ``b`` such that each instance of ``b`` reads what its own instance of ``a`` writes."""
        crossing = list(self._crossing(a, b))
        paired: set[Item] = set()
        for way in self.groups[b].ways:
            sources = {self._source(way, maker, name, reader) for maker, name, reader in crossing}
            into = sources.pop() if len(sources) == 1 else None
            if into is not None and into in self.groups[a].ways and into not in paired:
                paired.add(into)
                yield into, way

    def _crossing(self, a: int, b: int) -> Iterator[tuple[int, str, int]]:
        """(maker in ``a``, array, reader in ``b``)"""
        if self.groups[a].count <= self.groups[b].count:
            for maker in self.clusters.members(a):
                for name in self._planned[maker].writes:
                    readers = self._readers.get(name, ())
                    yield from ((maker, name, r) for r in readers if self.clusters.leader(r) == b)
            return
        for reader in self.clusters.members(b):
            for name in self._planned[reader].reads:
                if name in self._maker and self.clusters.leader(self._maker[name]) == a:
                    yield self._maker[name], name, reader

    def _source(self, way: Item, maker: int, name: str, reader: int) -> Item | None:
        """The way of ``maker`` that writes what ``reader``, cut in ``way``, reads of ``name``."""
        cut = self.cut_of(reader, way)
        link = cut.links.get(name) if cut else None
        if link is None:
            return None
        axes = (c for c, other in enumerate(self._planned[maker].ways) if other.division.axes[name] == link.axis)
        return next((self._find((maker, c)) for c in axes), None)

    def cut_of(self, k: int, way: Item | None) -> Cut | None:
        """How node ``k`` is cut in a way of its group."""
        return next((cut for c, cut in enumerate(self._planned[k].ways) if self._find((k, c)) == way), None)

    def _find(self, item: Item) -> Item:
        leader = item
        while leader in self._leader:
            leader = self._leader[leader]
        while item != leader:
            self._leader[item], item = leader, self._leader[item]
        return leader

    def _together(self, first: Group, second: Group) -> tuple[Profile, dict[str, Use]]:
        """The profile of both, and what is not in the uses of the larger one already."""
        profile = first.profile.merge(second.profile)
        large, small = (first.uses, second.uses) if len(first.uses) >= len(second.uses) else (second.uses, first.uses)
        changed = dict(small)
        for name, use in small.items():
            if (before := large.get(name)) is None:
                continue
            changed[name] = both = use.join(before)
            size = self._bytes(name)
            for interval in (self._alive(name, use), self._alive(name, before)):
                profile = profile.with_bytes(*interval, -size)
            profile = profile.with_bytes(*self._alive(name, both), size)
        return profile, changed

    def merge(self, a: int, b: int, trial: _Trial) -> int:
        """Make one group of both; returns its leader."""
        first, second = self.groups.pop(a), self.groups.pop(b)
        large = first.uses if len(first.uses) >= len(second.uses) else second.uses
        large.update(trial.group.uses)
        trial.group.uses = large
        for into in trial.group.ways:
            self._leader[trial.joins[into]] = into
        leader = self.clusters.merge(a, b)
        self.groups[leader] = trial.group
        return leader

    # ---------------------------------------------------------------- the rules

    def rule_i(self, a: int, b: int) -> int | None:
        """Rule (i): merge ``a`` with the group ``b`` that reads it where that spoils the split of neither.

        Along the axis of the result, where ``b`` has been down-sampled against ``a``: its factor is no less than that
        of ``a``, which would pass its larger factor on, and that of both no larger than that of ``b``. Where it has
        been up-sampled, the other way around (section 3.6). Where the elements are as many, nothing is passed on for
        long, and the factor of both is no larger than the larger one.
        """
        if (a, self.groups[a].count, b, self.groups[b].count) in self._refused:
            return None
        scale_a, scale_b = self.groups[a].scale, self.groups[b].scale

        def is_allowed(first: AxisSplit, second: AxisSplit, both: AxisSplit) -> bool:
            if scale_a == scale_b:
                return both.factor <= max(first.factor, second.factor)
            small, large = (second, first) if scale_b > scale_a else (first, second)
            return small.factor <= large.factor and both.factor <= large.factor

        return self._merge_if(a, b, is_allowed)

    def _merge_if(self, a: int, b: int, allowed: Allowed) -> int | None:
        trial = self.attempt(a, b, allowed)
        if trial is None:
            self._refused.add((a, self.groups[a].count, b, self.groups[b].count))
            return None
        return self.merge(a, b, trial)

    def rule_ii(self, middles: Sequence[int], last: int) -> int | None:
        """Rule (ii): merge what lies between one entry and ``last`` with it, one after the other, as long as the factor
        of the whole is no larger than the largest of its parts."""
        leader = last
        for k in reversed(middles):
            if (k, self.groups[k].count, leader, self.groups[leader].count) in self._refused:
                return None
            grows = self.groups[leader].scale > self.groups[k].scale

            def is_allowed(first: AxisSplit, second: AxisSplit, both: AxisSplit, grows: bool = grows) -> bool:
                return both.factor <= (first.factor if grows else max(first.factor, second.factor))

            merged = self._merge_if(k, leader, is_allowed)
            if merged is None:
                return None
            leader = merged
        return leader

    # ---------------------------------------------------------------- the patterns

    def run(self) -> Merging:
        """Algorithm 2; returns itself."""
        self.layers()
        before = -1
        while before != len(self.groups):
            before = len(self.groups)
            self.straight()
            self.diamond()
            self.branch()
        self._lighten()
        return self

    def _lighten(self) -> None:
        """Products of computed operands (attention) whose operands wait as a whole get smaller instances: these read no
        weights again, and leave room to what waits. Where instances read of instances, the order keeps little waiting
        as it is."""
        light: set[int] = set()
        for leader in self.clusters.topological():
            group = self.groups[leader]
            whole = all(self._is_whole(k) or k in light for k in self.clusters.predecessors(leader))
            if group.best is not None and group.best.factor > 1 and whole and self._is_product(leader):
                finer = lighter(group.best, group.ways, group.profile.peak, self.budget)
                group.information = finer or group.information
                light |= {leader} if finer else set()

    def refine(self, leader: int) -> bool:
        """Split a group at least twice as finely, as it is split; False where that cannot be."""
        group = self.groups[leader]
        best = group.best
        if best is None or best.way is None:
            return False
        refined = finer(best, group.ways[best.way], group.profile.peak, self.budget)
        if refined is not None:
            group.information = {best.way: refined}
        return refined is not None

    def _is_whole(self, leader: int) -> bool:
        best = self.groups[leader].best
        return best is None or best.factor == 1

    def _is_product(self, leader: int) -> bool:
        """Has it products, and hardly any weights?"""
        few = self.groups[leader].weights * FEW <= self.groups[leader].profile.peak
        return few and any(isinstance(self._planned[k].node, Contraction) for k in self.clusters.members(leader))

    def layers(self) -> None:
        """What writes over the result of a node with weights, which nothing else reads, joins it first (section 1.1),
        lest a group ends between a convolution and its activation."""
        for k in range(self._size):
            name = self._overwritten[k]
            if name is not None:
                a, b = self.clusters.leader(self._maker[name]), self.clusters.leader(k)
                only = self.clusters.successors(a) == (b,) and self.clusters.predecessors(b) == (a,)
                if only and self.groups[a].weights:
                    self.rule_i(a, b)

    def straight(self) -> None:
        """A group and the only one that reads it, which reads no other (figure 4a)."""
        for start in self.clusters.topological():
            a: int | None = start if start in self.groups else None
            while a is not None:
                after = self.clusters.successors(a)
                only = len(after) == 1 and self.clusters.predecessors(after[0]) == (a,)
                a = self.rule_i(a, after[0]) if only else None

    def diamond(self) -> None:
        """Groups between one entry and one exit, with the exit (figure 4b)."""
        for last in self.clusters.topological():
            if last not in self.groups:
                continue
            before = self.clusters.predecessors(last)
            entries = {self.clusters.predecessors(k) for k in before if self.clusters.successors(k) == (last,)}
            for entry in entries:
                middles = [k for k in before if k not in entry]
                ways = {(self.clusters.predecessors(k), self.clusters.successors(k)) for k in middles}
                if len(entry) == 1 and len(middles) > 1 and ways == {(entry, (last,))}:
                    self.rule_ii(middles, last)

    def branch(self) -> None:
        """A group that several lead to, with each of these that only it reads (figure 4c)."""
        for start in reversed(self.clusters.topological()):
            last: int | None = start if start in self.groups else None
            while last is not None:
                last = self._branch_at(last)

    def _branch_at(self, last: int) -> int | None:
        before = self.clusters.predecessors(last)
        if len(before) < 2:
            return None
        for k in reversed(before):
            if self.clusters.successors(k) == (last,) and (merged := self.rule_i(k, last)) is not None:
                return merged
        return None


def _is_allowed(allowed: Allowed, first: AxisSplit | None, second: AxisSplit | None, both: AxisSplit) -> bool:
    """Both have room along the axis, on as many clusters, and the rule holds."""
    if first is None or second is None or len({first.clusters, second.clusters, both.clusters}) > 1:
        return False
    return allowed(first, second, both)


def _is_finer(both: AxisSplit | None, first: AxisSplit | None, second: AxisSplit | None) -> bool:
    """Does what is left of the ways lead to more instances than either group would have had? An axis of 197 elements
    has no other factors, and allows what the batch does not."""
    return both is not None and both.factor > max(split.factor for split in (first, second) if split is not None)
