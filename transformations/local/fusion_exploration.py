"""Explore which kernels to fuse, by a scoring function, and fuse the best of what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, ClassVar, NamedTuple

from daceopt.errors import DaceoptError
from daceopt.ir.fusion.fusion_plan import emit
from daceopt.ir.graph.graph import Graph
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.progress import ProgressCounter, phase
from daceopt.transformations.local._fusion_choice import Selection, pack, rank
from daceopt.transformations.local._fusion_scores import MEASURED, Score, estimate
from daceopt.transformations.local._fusion_space import FusionCandidate, FusionSpace, bits
from daceopt.transformations.local._kernel_timing import kernel_timings

_SELECTIONS: dict[str, Selection] = {"program": pack, "ranked": rank}


@dataclass(frozen=True)
class FusionExploration(Transformation):
    """Enumerate sets of kernels that can be one, score them, and fuse those that together save most.

    before:  a = f(x)    b = g(a)    c = h(a)    d = k(b, c)
    after:   d = { t = f(x); k(g(t), h(t)) }        the best of {a, b}, {a, c}, {a, b, c}, {b, d}, ... {a, b, c, d}

    Rausch et al., DaCeML, section 5.2. Sets grow one kernel at a time, those that save most first, within path
    constraints; ``budget`` bounds the kernels that are made for each kernel of a region. Greedy fusion's
    sets are among them, so that by the score nothing is worse than ``map-fusion``.

    ``score``: "bytes", "roofline" (seconds by bytes and operations at this machine's rates), "kernels", "measured"
    (each candidate is built and timed; found by the roofline), or a function of a candidate (``bytes``,
    ``operations``, ``seconds``, ``kernel``, ``members``): less is better, and the sum over all kernels counts.
    ``selection``: "program" (an integer program), or "ranked" (what saves most first). ``profitable``: leave out what
    ``ir.fusion.fusion_profit`` takes for slower. All but measurements is the same on every run.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = True
    score: str | Score = "bytes"
    budget: int = 12
    selection: str = "program"
    profitable: bool = True

    def __post_init__(self) -> None:
        estimate(self.score)
        if self.selection not in _SELECTIONS:
            raise DaceoptError(f"selection={self.selection!r}: expected one of {', '.join(_SELECTIONS)}")
        if self.budget < 1:
            raise DaceoptError(f"budget={self.budget}: expected 1 or more")

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        space = FusionSpace(graph, self.profitable)
        for candidate in self._choose(space):
            yield Site(graph, candidate.members, {"kernel": candidate.kernel})
        yield from (NearMiss(node, reason) for node, reason in space.misses)

    def apply(self, site: Site) -> None:
        emit(site.graph, site.nodes, site["kernel"])

    def _choose(self, space: FusionSpace) -> list[FusionCandidate]:
        choose = _SELECTIONS[self.selection]
        regions = [_Region(space, mask, estimate(self.score), choose) for mask in space.regions() if mask & (mask - 1)]
        seeds = space.greedy()
        choices: dict[str, list[_Found]] = {}
        with phase("exploration"), ProgressCounter("exploration", len(regions)) as counter:
            for region in regions:
                signature = space.signature(region.mask)
                if not region.repeat(choices.get(signature) if signature else None):
                    region.explore([c for c in seeds if c.mask & region.mask], self.budget * region.mask.bit_count())
                    region.score(self.score)
                    choices[signature or ""] = region.results()
                counter.advance(f"{len(region.candidates)} candidates of {region.mask.bit_count()} kernels")
        return _acyclic(space, regions, seeds)


def _acyclic(space: FusionSpace, regions: Sequence[_Region], seeds: list[FusionCandidate]) -> list[FusionCandidate]:
    """The choice of all regions. Where kernels would wait for one another, that of them which saves least is given up,
    and its region chosen anew; greedy fusion's groups wait for none, so they are taken where they save more then."""
    given_up = False
    while True:
        pairs = [(r, c) for r in regions for c in r.chosen]
        groups = [c for _, c in pairs]
        try:
            TopologicalSorter(space.waiting(groups)).prepare()
        except CycleError as error:
            waiting = [(r, c) for r, c in pairs if min(bits(c.mask)) in error.args[1]]
            region, worst = min(waiting, key=lambda pair: pair[0].saved[pair[1].mask])
            region.give_up(worst)
            given_up = True
            continue
        if given_up and _estimate(regions, seeds) > _estimate(regions, groups):
            return seeds
        return groups


def _estimate(regions: Sequence[_Region], groups: Sequence[FusionCandidate]) -> float:
    """What groups save in all, by the estimate."""
    return sum(r.estimate_of(c) for r in regions for c in groups if c.mask & r.mask)


class _Found(NamedTuple):
    """A candidate that was chosen, in the positions of its region's kernels, and what it saves."""

    places: tuple[int, ...]
    order: tuple[int, ...]
    saved: float


@dataclass
class _Region:
    """Kernels that can be fused with one another only, and the candidates that were found among them."""

    space: FusionSpace
    mask: int
    estimate: Score
    choose: Selection
    candidates: list[FusionCandidate] = field(default_factory=list)
    saved: dict[int, float] = field(default_factory=dict)
    _chosen: list[FusionCandidate] | None = None
    _costs: dict[int, float] = field(default_factory=dict)

    @property
    def chosen(self) -> list[FusionCandidate]:
        """The best disjoint candidates, in the order of their first kernels."""
        if self._chosen is None:
            places = self.choose(self.candidates, [self.saved[c.mask] for c in self.candidates])
            self._chosen = sorted((self.candidates[k] for k in places), key=lambda c: c.mask & -c.mask)
        return self._chosen

    def give_up(self, candidate: FusionCandidate) -> None:
        """Choose among the others from now on."""
        self.candidates.remove(candidate)
        self._chosen = None

    # ---------------------------------------------------------------- equal regions

    def results(self) -> list[_Found]:
        """What is chosen here, for regions that are equal."""
        place = {k: n for n, k in enumerate(bits(self.mask))}
        return [
            _Found(tuple(place[k] for k in bits(c.mask)), tuple(place[k] for k in c.order), self.saved[c.mask])
            for c in self.chosen
        ]

    def repeat(self, candidates_before: Sequence[_Found] | None) -> bool:
        """Take what an equal region came to; False where there is none, or it does not come to that here."""
        here = list(bits(self.mask))
        for each in candidates_before or ():
            mask = sum(1 << here[k] for k in each.places)
            candidate = self.space.candidate_of(mask) or (
                self.space.along(here[k] for k in each.order) if each.order else None
            )
            if candidate is None:
                self.candidates.clear()
                return False
            self.candidates.append(candidate)
            self.saved[mask] = each.saved
        return candidates_before is not None

    # ---------------------------------------------------------------- exploration

    def explore(self, seeds: Sequence[FusionCandidate], budget: int) -> None:
        """Best first: of what was found, what saves most by the estimate grows by each of its neighbours."""
        waiting: list[tuple[float, int, FusionCandidate]] = []
        for candidate in seeds:
            self._find(candidate, waiting)
        for k in bits(self.mask):
            heappush(waiting, (0.0, 1 << k, self.space.single[k]))
        while waiting and budget > 0:
            candidate = heappop(waiting)[2]
            for k in bits(self.space.beside(candidate.mask) & self.mask):
                if budget > 0 and not self.space.is_known(candidate.mask | 1 << k):
                    budget -= 1
                    grown = self.space.grow(candidate, k)
                    if isinstance(grown, FusionCandidate):
                        self._find(grown, waiting)

    def _find(self, candidate: FusionCandidate, waiting: list[Any]) -> None:
        self.candidates.append(candidate)
        heappush(waiting, (-self.estimate_of(candidate), candidate.mask, candidate))

    def estimate_of(self, candidate: FusionCandidate) -> float:
        """What a candidate saves over its kernels by themselves, by the estimate."""
        alone = sum(self._cost(self.space.single[k]) for k in bits(candidate.mask))
        return alone - self._cost(candidate)

    def _cost(self, candidate: FusionCandidate) -> float:
        if candidate.mask not in self._costs:
            self._costs[candidate.mask] = self.estimate(candidate)
        return self._costs[candidate.mask]

    def score(self, score: str | Score) -> None:
        """What each candidate saves: as estimated, or as measured now."""
        if score != MEASURED:
            self.saved = {c.mask: self.estimate_of(c) for c in self.candidates}
            return
        alone = [self.space.single[k] for k in bits(self.mask)]
        everyone = [*alone, *self.candidates]
        seconds = dict(zip((c.mask for c in everyone), kernel_timings(everyone)))
        self.saved = {c.mask: sum(seconds[1 << k] for k in bits(c.mask)) - seconds[c.mask] for c in self.candidates}
