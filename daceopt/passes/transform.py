"""Transformation: the base class that users subclass, and the driver that applies one in linear time."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from daceopt.errors import DaceoptError, SiteError, did_you_mean
from daceopt.passes.catalogue import Registry
from daceopt.passes.step_options import make_step

if TYPE_CHECKING:
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.graph.kinds import Node

DIFFERENTIATE = "differentiate"
LEVELS = ("coarse", "lower", "local", DIFFERENTIATE, "layout", "hardware")
OF_DACE = "dace:"  # before the names of DaCe's own transformations
_MAX_ROUNDS = 64
_PLACES = frozenset(("array", "kernel", "site", "origin", "store", "recompute", "groups", "buckets"))  # options


@dataclass(frozen=True, eq=False)
class Site:
    """One place where a transformation applies: the nodes it edits, the anchor first, and what ``match`` found.

    Reports call it by its nodes, or as ``found["title"]`` says.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    found: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.found[key]

    def __str__(self) -> str:
        return str(self.found.get("title") or " + ".join(label_of(n) for n in self.nodes))


@dataclass(frozen=True)
class NearMiss:
    """A place that looked like a match, and why it is none. ``node`` is a compute node or its label."""

    node: Node | str
    reason: str

    def __str__(self) -> str:
        return f"{label_of(self.node)}: {self.reason}"


@dataclass
class Outcome:
    """What one run of a transformation did."""

    sites: list[str]
    near_misses: list[str]


def label_of(node: Node | str) -> str:
    """How reports name a compute node."""
    if isinstance(node, str):
        return node
    return str(getattr(node, "label", None) or getattr(node, "op_type", node))


@dataclass(frozen=True)
class Transformation:
    """A named rewrite of a graph; subclasses are frozen dataclasses whose fields are the options.

    Override ``apply``, and ``match_at`` (preferred: only the neighbourhood of an edit is visited again) or ``match``.
    """

    level: ClassVar[str] = "local"
    sites_are_independent: ClassVar[bool] = False  # all sites of one match may be applied, and one match finds them all
    changes_precision: ClassVar[bool] = False  # True: its numbers are less exact, as the program's user asked for
    needs_options: ClassVar[bool] = False  # True: without options it is no step yet
    enters_bodies: ClassVar[bool] = True  # of control flow
    changes_dataflow: ClassVar[bool] = True  # False: nodes, arrays and their edges stay, only how they run changes

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        """Yield every site of ``graph``, and a ``NearMiss`` where something almost matched. Must not edit."""
        for node in graph.nodes():
            yield from self.match_at(graph, node)

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        """Yield the sites anchored at ``node``. Must not edit."""
        raise NotImplementedError(f"{type(self).__name__} defines neither match nor match_at")

    def apply(self, site: Site) -> None:
        """Edit ``site.graph``; ``match`` has decided that it is legal."""
        raise NotImplementedError(f"{type(self).__name__} does not define apply")

    def run_program(self, program: Program) -> Outcome:
        """Override to edit both directions of a program in one step; the runner then asks for nothing else."""
        raise NotImplementedError(f"{type(self).__name__} runs on each graph by itself")

    @property
    def edits_programs(self) -> bool:
        """Does it edit both directions of a program at once?"""
        return type(self).run_program is not Transformation.run_program

    @property
    def defined_by(self) -> type:
        """The class whose file says what the step does."""
        return type(self)

    @classmethod
    def kebab_name(cls) -> str:
        """``PadConvFusion`` -> ``pad-conv-fusion``."""
        return _kebab(cls.__name__)

    @property
    def name(self) -> str:
        return self.kebab_name()

    @property
    def names_places(self) -> bool:
        """Does an option say where in a model it works: by names, or by a function of what is there?"""
        options = [f for f in dataclasses.fields(self) if f.name in _PLACES]
        return any(getattr(self, option.name) != option.default for option in options)

    @property
    def inner(self) -> Transformation:
        """The step that does the work: another one, where this one only says where."""
        return self

    def runs_on(self, direction: str) -> bool:
        """Does it edit the graph of this direction, "forward" or "backward"? Programs are edited in both."""
        return True

    def __str__(self) -> str:
        options = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        shown = [f"{f.name}={_option_text(value)}" for f, value in options if value != f.default]
        return self.name + (f"{{{', '.join(shown)}}}" if shown else "")

    @classmethod
    def with_options(cls, options: Mapping[str, object]) -> Transformation:
        """An instance with ``options``. Raises DaceoptError for an option that does not exist, and for values that it
        does not take."""
        return make_step(cls.kebab_name(), cls, options, lambda values: cls(**values))

    def with_changes(self, options: Mapping[str, object]) -> Transformation:
        """The same with ``options``, its others as before. Raises DaceoptError as ``with_options`` does."""
        return make_step(self.name, type(self), options, lambda values: dataclasses.replace(self, **values))

    @staticmethod
    def parse(text: str) -> Transformation:
        """``"map-tiling{size=32}"`` -> the transformation. Raises DaceoptError for a wrong name, syntax or option."""
        name, options = parse_step(text)
        return transformations.get(name).with_options(options)

    def run(self, graph: Graph, limit: int | None = None) -> Outcome:
        """Apply to every site (at most ``limit``), with those in bodies of control flow where it enters them, drop what
        became dead, and say what was done."""
        from daceopt.ir.control import region  # a warm start reads recipes without it

        local = type(self).match is Transformation.match
        outcome = (_run_local if local else _run_rounds)(self, graph, limit)
        if outcome.sites and self.changes_dataflow:
            graph.prune()
        for body in region.bodies(graph) if self.enters_bodies else ():
            inner = self.run(body, None if limit is None else limit - len(outcome.sites))
            outcome = Outcome(outcome.sites + inner.sites, outcome.near_misses + inner.near_misses)
        if outcome.sites and self.changes_dataflow:
            region.tidy(graph)
        return outcome


def _option_text(value: object) -> str:
    """A value of an option; functions by their names, which are the same in each process, steps by their text."""
    if isinstance(value, Transformation):
        return repr(str(value))
    if isinstance(value, tuple):
        return f"({', '.join(map(_option_text, value))}{',' if len(value) == 1 else ''})"
    return str(value.__qualname__) if isinstance(value, FunctionType) else repr(value)


def look(transformation: Transformation, graph: Graph) -> list[Site | NearMiss]:
    """What ``transformation`` finds in ``graph`` and in bodies of control flow; nothing is applied."""
    from daceopt.ir.control import region

    sites: list[Site | NearMiss] = []
    for body in region.everything(graph):
        if type(transformation).match is not Transformation.match:
            sites += _matches(transformation, body)
            continue
        for node in body.nodes():
            sites += [] if is_dead(body, node) else _matches(transformation, body, node)
    return sites


def _matches(transformation: Transformation, graph: Graph, *node: Node) -> list[Site | NearMiss]:
    """What it finds at ``node``, or in all of ``graph``. Raises DaceoptError where that is no site of ``graph``."""
    sites = list(transformation.match_at(graph, *node) if node else transformation.match(graph))
    for one in sites:
        if reason := _why_no_site(graph, one):
            raise DaceoptError(f"match of step {transformation} gave {reason}")
    return sites


def apply_at(transformation: Transformation, graph: Graph, site: Site) -> Outcome:
    """Apply one site that ``look`` found in ``graph`` or in a body of its control flow, and drop what became dead."""
    from daceopt.ir.control import region

    edits = _Edits(transformation, site.graph, None)
    edits.apply(site)
    if transformation.changes_dataflow:
        site.graph.prune()
        region.tidy(graph)
    return Outcome(edits.sites, [])


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def is_registered(name: str) -> bool:
    """Does text with this name stand for a step, whoever looks it up? DaCe's classes are known by theirs."""
    return name.startswith(OF_DACE) or name in transformations.names()


def parse_step(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name{option=value, ...}`` into the name and its options (Python literals)."""
    parts = re.fullmatch(r"\s*([a-z0-9-]+|dace:\w*)\s*(?:\{(.*)\})?\s*", text, re.DOTALL)
    if not parts:
        near = did_you_mean(re.sub(r"[\s_]+", "-", _kebab(text.partition("{")[0].strip())), transformations.names())
        raise DaceoptError(f"step {text!r}: expected a form like map-tiling{{size=32}}{near}")
    try:
        call = ast.parse(f"f({parts[2] or ''})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        options = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, AssertionError) as error:
        raise DaceoptError(f"options of step {text!r}: expected name=value pairs with literal values") from error
    if len(options) < len(call.keywords):
        raise DaceoptError(f"options of step {text!r}: an option is given twice; expected each once")
    name, of_dace, of = parts[1].partition(":")
    if of_dace and not of:
        raise DaceoptError(f"step {text!r}: expects the name of a transformation of DaCe, as in dace:MapTiling")
    return ("dace-transformation", {"of": of, "options": options}) if of else (name, options)


def _why_no_site(graph: Graph, site: object) -> str | None:
    if isinstance(site, NearMiss):
        return None
    if not isinstance(site, Site):
        return f"{site!r}; expected Site(graph, (node, ...)) or NearMiss(node, reason)"
    if site.graph is not graph:
        return f"a site of another graph; expected one of {graph.name}"
    nodes: Any = site.nodes  # as a user gave them
    return None if isinstance(nodes, tuple) else f"Site(graph, {nodes!r}); expected (node, ...)"


# ---------------------------------------------------------------- the driver


class _Edits:
    """Applies sites one by one and finds the nodes around each edit."""

    def __init__(self, transformation: Transformation, graph: Graph, limit: int | None):
        self._transformation, self._graph, self._limit = transformation, graph, limit
        self._bound = 1000 + 20 * len(graph.nodes())
        self.sites: list[str] = []

    @property
    def exhausted(self) -> bool:
        return self._limit is not None and len(self.sites) >= self._limit

    def apply(self, site: Site) -> list[Node]:
        """Apply ``site``; returns the nodes of its neighbourhood that exist afterwards, new ones included."""
        if len(self.sites) >= self._bound:
            raise DaceoptError(f"{self._transformation} does not end: {self._bound} applications, the last at {site}")
        self.sites.append(str(site))
        if not self._transformation.changes_dataflow:
            self._edit(site)
            return list(site.nodes)
        graph, boundary = self._graph, _boundary(self._graph, site.nodes)
        nearby = _around(graph, boundary)
        self._edit(site)
        after = _around(graph, [name for name in boundary if graph.has(name)])
        return [n for n in dict.fromkeys([*after, *nearby]) if n in graph]

    def _edit(self, site: Site) -> None:
        """Apply ``site``; what that raises knows where it was."""
        text = self.sites[-1]  # of before the edit, which may remove what the site is called by
        try:
            self._transformation.apply(site)
        except DaceoptError as error:
            error.site = error.site or text
            raise
        except Exception as error:
            raise SiteError(error, text) from error


def _boundary(graph: Graph, nodes: Iterable[Node]) -> list[str]:
    names = [n for node in nodes if node in graph for n in (*graph.inputs_of(node), *graph.outputs_of(node))]
    return list(dict.fromkeys(n for n in names if n is not None))


def _around(graph: Graph, names: Iterable[str]) -> list[Node]:
    """Writers and readers of ``names`` and of their views, writers first."""
    nodes: dict[Node | None, None] = {}
    for name in names:
        root = graph.root(name)[0]
        nodes.update(dict.fromkeys([*graph.producers(root), *graph.all_consumers(root)]))
    nodes.pop(None, None)
    return list(nodes)


def is_dead(graph: Graph, node: Node) -> bool:
    """True when nothing reads what ``node`` writes and none of it is an output."""
    outputs = [n for n in graph.outputs_of(node) if n is not None]
    return not any(a in graph.outputs or graph.consumers(a) for n in outputs for a in graph.aliases(n))


def sweep(graph: Graph, nodes: Iterable[Node | None]) -> None:
    """Remove those of ``nodes`` that are dead, and whatever becomes dead above them."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node is None or node not in graph or not is_dead(graph, node):
            continue
        waiting.extend(p for n in graph.inputs_of(node) if n is not None for p in graph.producers(n))
        graph.remove(node)


def _run_local(transformation: Transformation, graph: Graph, limit: int | None) -> Outcome:
    """One topological pass; an edit puts its neighbourhood back in front of the queue."""
    edits = _Edits(transformation, graph, limit)
    queue = deque(graph.nodes())
    queued = set(queue)
    misses: dict[Any, list[str]] = {}
    while queue and not edits.exhausted:
        node = queue.popleft()
        queued.discard(node)
        misses.pop(node, None)
        if node not in graph or is_dead(graph, node):
            continue
        matches = _matches(transformation, graph, node)
        site = next((s for s in matches if isinstance(s, Site)), None)
        if site is None:
            misses[node] = [str(m) for m in matches]
            continue
        fresh = [n for n in edits.apply(site) if n not in queued]
        queue.extendleft(reversed(fresh))
        queued.update(fresh)
    return Outcome(edits.sites, [m for node, texts in misses.items() if node in graph for m in texts])


def _run_rounds(transformation: Transformation, graph: Graph, limit: int | None) -> Outcome:
    """Match the whole graph, apply every site that no earlier edit touched, and repeat while something applied."""
    edits = _Edits(transformation, graph, limit)
    for _ in range(_MAX_ROUNDS):
        matches = _matches(transformation, graph)
        misses = [str(m) for m in matches if isinstance(m, NearMiss)]
        before = len(edits.sites)
        touched: set[Any] = set()
        for site in matches:
            untouched = transformation.sites_are_independent or not touched.intersection(getattr(site, "nodes", ()))
            valid = isinstance(site, Site) and untouched and all(n in graph for n in site.nodes)
            if valid and not edits.exhausted:
                touched.update(edits.apply(site))  # type: ignore[arg-type]
        if len(edits.sites) == before or edits.exhausted or transformation.sites_are_independent:
            return Outcome(edits.sites, misses)
    raise DaceoptError(f"{transformation} still finds sites after {_MAX_ROUNDS} rounds, the last at {edits.sites[-1]}")


def _definitions_in(module: ModuleType) -> dict[str, Any]:
    classes = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    return {c.kebab_name(): c for c in classes if issubclass(c, Transformation) and not c.__name__.startswith("_")}


transformations = Registry("transformation", "daceopt.transformations", _definitions_in)
