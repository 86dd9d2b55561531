"""The places where transformations apply to one version of a program, why others do not, and which one was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from daceopt import progress
from daceopt.errors import DaceoptError, SessionError
from daceopt.explore.report.units import plural, printable
from daceopt.ir.control import region
from daceopt.passes.selection import Selector, origin_of, title_of
from daceopt.passes.transform import NearMiss, Site, Transformation, label_of, look
from daceopt.passes.verification import check_match
from daceopt.store import identity

if TYPE_CHECKING:
    from daceopt.explore.session.version import Version
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph

_SHOWN = 400  # rows of a table


class Walker(Protocol):
    """Who walks from version to version, by sites among others: a session."""

    @property
    def title(self) -> str:
        """What the model is called."""

    @property
    def at(self) -> Version:
        """Where the walk is."""

    def apply(self, step: Any) -> Walker:
        """Apply a site or a step; returns itself."""


class SiteKey(NamedTuple):
    """What a site is known by in all versions of one program: names of arrays are the same in copies."""

    direction: str
    body: int
    nodes: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class FoundSite:
    """A place where ``transformation`` applies. ``origin``: where in the model its nodes come from."""

    transformation: Transformation
    direction: str
    text: str
    origin: str
    key: SiteKey = field(repr=False)
    session: Walker = field(repr=False)

    def apply(self) -> Walker:
        """Apply it in the session that found it; returns the session."""
        return self.session.apply(self)

    def __str__(self) -> str:
        origin = f", from {self.origin}" if self.origin else ""
        return printable(f"{self.transformation} at {self.text or 'the whole graph'} ({self.direction}{origin})")


@dataclass(frozen=True)
class FoundNearMiss:
    """A place that almost matched, and why it did not."""

    transformation: Transformation
    direction: str
    text: str
    key: SiteKey = field(repr=False)

    def __str__(self) -> str:
        return printable(f"{self.transformation}, {self.direction}: {self.text}")


@dataclass(frozen=True)
class SiteList(Sequence[FoundSite]):
    """Sites, which can be applied; ``near_misses`` with their reasons; ``failures``: transformations that could not
    look, by name; ``whole``: those that have no single sites and edit a program as a whole; ``late``: those that were
    not looked for, because their level comes before that of steps that were applied."""

    sites: tuple[FoundSite, ...]
    near_misses: tuple[FoundNearMiss, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    late: tuple[str, ...] = ()

    @overload
    def __getitem__(self, place: int) -> FoundSite: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[FoundSite]: ...

    def __getitem__(self, place: int | slice) -> FoundSite | Sequence[FoundSite]:
        return self.sites[place]

    def __len__(self) -> int:
        return len(self.sites)

    def matching(self, text: str) -> SiteList:
        """Those whose step, name or origin contains ``text``, near misses as well."""

        def fits(one: FoundSite | FoundNearMiss) -> bool:
            return text.lower() in str(one).lower()

        return SiteList(tuple(filter(fits, self.sites)), tuple(filter(fits, self.near_misses)))

    def __str__(self) -> str:
        lines = [plural(len(self.sites), "site"), *(f"  [{k}] {site}" for k, site in enumerate(self.sites))]
        lines += [f"{len(self.near_misses)} near misses"] if self.near_misses else []
        lines += [f"  {miss}" for miss in self.near_misses]
        lines += [f"{name} could not look: {printable(why)}" for name, why in self.failures.items()]
        lines += [f"as a whole only: {', '.join(self.whole)}"] if self.whole else []
        lines += [f"too late for: {', '.join(self.late)}"] if self.late else []
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        rows = [(str(k), str(s.transformation), s.direction, s.text, s.origin) for k, s in enumerate(self.sites)]
        rows += [("near miss", str(m.transformation), m.direction, m.text, "") for m in self.near_misses]
        rows += [("could not look", name, "", why, "") for name, why in self.failures.items()]
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows[:_SHOWN])
        note = f"<p>and {len(rows) - _SHOWN} more</p>" if len(rows) > _SHOWN else ""
        heads = "".join(f"<th>{name}</th>" for name in ("", "step", "direction", "site", "from"))
        return f"<table><tr>{heads}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>{note}"


def find(session: Walker, program: Program, common: Program, transformations: Iterable[Transformation]) -> SiteList:
    """What each of them finds in ``program``, which stays as it is, whatever they do.

    ``common``: a copy of it, for transformations that are known not to edit what they look at.
    """
    steps = list(transformations)
    sites: list[FoundSite] = []
    misses: list[FoundNearMiss] = []
    failures: dict[str, str] = {}
    whole = tuple(str(s) for s in steps if edits_programs(s))
    with progress.phase("sites"), progress.steps(len(steps)) as counter:
        for step in steps:
            counter.advance(str(step))
            own = identity.is_own(type(step).__module__)
            try:
                for direction, graph, matches in _look(step, common if own else program.copy(), checked=not own):
                    keys = Keys(direction, graph)
                    sites += [_find(session, step, keys, s) for s in matches if isinstance(s, Site)]
                    near = [m for m in matches if isinstance(m, NearMiss)]
                    misses += [FoundNearMiss(step, direction, str(m), keys.of_miss(m)) for m in near]
            except Exception as error:  # of a user's transformation: the others are still of interest
                failures[str(step)] = (
                    str(error) if isinstance(error, DaceoptError) else f"{type(error).__name__}: {error}"
                )
                common = program.copy()
    return SiteList(tuple(sites), tuple(misses), failures, whole)


def edits_programs(step: Transformation) -> bool:
    """Has it no sites of its own?"""
    return type(step).run_program is not Transformation.run_program


def _look(step: Transformation, program: Program, checked: bool) -> Iterator[tuple[str, Graph, list[Site | NearMiss]]]:
    if edits_programs(step):
        return
    for direction, graph in program.by_direction():
        if step.runs_on(direction):
            if checked:
                check_match(step, graph)
            yield direction, graph, look(step, graph)


def _find(session: Walker, step: Transformation, keys: Keys, site: Site) -> FoundSite:
    return FoundSite(step, keys.direction, title_of(site), origin_of(site), keys.of(site), session)


class Keys:
    """The keys of sites that were found in a graph or in bodies of its control flow."""

    def __init__(self, direction: str, graph: Graph):
        self.direction = direction
        self._places = {part: k for k, part in enumerate(region.everything(graph))}

    def of(self, site: Site) -> SiteKey:
        """What is the same for this site in all copies of the graph."""
        inside = site.graph
        return SiteKey(self.direction, self._places[inside], tuple(_node_key(inside, n) for n in site.nodes))

    def of_miss(self, miss: NearMiss) -> SiteKey:
        """The same for a place that almost matched."""
        inside = next((part for part in self._places if miss.node in part), None)
        if inside is None:
            return SiteKey(self.direction, 0, (label_of(miss.node),))
        return SiteKey(self.direction, self._places[inside], (_node_key(inside, miss.node),))


def _node_key(graph: Graph, node: object) -> Any:
    return tuple(graph.outputs_of(node)) if node in graph else label_of(node)


def selector_of(site: FoundSite, program: Program) -> Selector:
    """What picks the site in ``program``, a later version perhaps. Raises DaceoptError where it is gone."""
    graph = dict(program.by_direction()).get(site.direction)
    if graph is None:
        raise SessionError(f"{site} is no site here: there is no {site.direction} graph yet")
    keys_of = Keys(site.direction, graph)
    sites = [s for s in look(site.transformation, graph) if isinstance(s, Site)]
    keys = [keys_of.of(s) for s in sites]
    same = [s for s, key in zip(sites, keys) if key == site.key]
    chosen = next((s for s in same if title_of(s) == site.text), same[0] if same else None)
    if chosen is None:
        there = next((s for s, key in zip(sites, keys) if key.nodes[:1] == site.key.nodes[:1]), None)
        now = "" if there is None else f"; there is {title_of(there)} now"
        raise SessionError(f"{site} is no site any more{now}: ask session.sites() again")
    return Selector.of(sites, chosen)
