"""Any transformation of DaCe as a step of a recipe: ``dace:MapTiling{tile_sizes=[32, 32]}``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dace
import dace.transformation.dataflow
import dace.transformation.interstate
import dace.transformation.subgraph
from dace.sdfg import nodes
from dace.transformation import transformation as xf
from dace.transformation.passes.pattern_matching import match_patterns

from daceopt.capture.dace.kernels import ReadKernel, read_scope
from daceopt.errors import DaceoptError, IllegalSchedule, Unsupported, did_you_mean
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.sdfg import GraphSdfg, expand
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.passes.transform import OF_DACE, NearMiss, Site, Transformation

_LOOPS = ("MapTiling", "StripMining", "MapInterchange", "MapExpansion", "MapCollapse", "MapDimShuffle")


@dataclass(frozen=True)
class DaceTransformation(Transformation):
    """Apply a transformation of DaCe to the kernels that it matches, once at each.

    before:  y[i, j] = f(x[i, j])                                              (dace:MapTiling{tile_sizes=[32, 32]})
    after:   for i_block: for j_block: for i < 32: for j < 32: y[i, j] = f(x[i, j])

    It is tried on a copy, and the maps that it leaves are read again: other loops over the same statements become the
    kernel's schedule, other statements other kernels. Where it changes what is no kernel, or leaves what is none, it is
    not applied, with the reason. ``of``: its class; ``options``: its properties. Those that choose loops are at the
    level hardware, before the steps that schedule what nobody has scheduled; others at the level local.
    """

    of: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.of:
            return
        properties = _properties(_class(self.of))
        for name in self.options:
            if name not in properties:
                message = f"dace:{self.of} has no option {name!r}; it has {', '.join(sorted(properties)) or 'none'}"
                raise DaceoptError(message + did_you_mean(name, properties))
        _instance(self)

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def name(self) -> str:
        """As recipes call it."""
        return f"{OF_DACE}{self.of}" if self.of else self.kebab_name()

    def with_changes(self, options: Mapping[str, object]) -> Transformation:
        """The same with these properties, its others as before."""
        return DaceTransformation(self.of, {**self.options, **options})

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return self.name + (f"{{{options}}}" if options else "")

    @property
    def level(self) -> str:  # type: ignore[override]
        """Where it is in a recipe."""
        return "hardware" if self.of in _LOOPS else "local"

    sites_are_independent = True
    needs_options = True

    @property
    def defined_by(self) -> type:
        """A transformation of DaCe's own comes with DaCe; that of somebody else is theirs."""
        definer = _class(self.of) if self.of else type(self)
        return type(self) if _is_of_dace(definer) else definer

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        """Each match of DaCe's pattern that works out on a copy.

        Raises DaceoptError where no transformation is named.
        """
        matched_nodes: set[nodes.Node] = set()
        near_misses: dict[str, NearMiss] = {}
        for k in range(len(_matches(self, expand(graph)))):
            trial = _Trial(graph, self, k)
            if not matched_nodes.isdisjoint(trial.matched):
                continue
            try:
                kernels = trial.run()
            except (Unsupported, IllegalSchedule) as error:
                miss = NearMiss(trial.title, str(error))
                near_misses[str(miss)] = miss
                continue
            if not kernels:
                miss = NearMiss(trial.title, "it changes nothing but how loops are nested: the kernel is the same")
                near_misses[str(miss)] = miss
                continue
            matched_nodes.update(trial.matched)
            yield Site(graph, tuple(trial.gone), {"kernels": kernels, "title": trial.title})
        yield from near_misses.values()

    def apply(self, site: Site) -> None:
        graph = site.graph
        graph.take_out(site.nodes)
        for read in site["kernels"]:
            node = graph.add_kernel(read.kernel.rename_locals_apart(graph))
            if read.tree is not None or (self.of in _LOOPS and len(read.kernel.stages) == 1):
                commit(graph, node, read.tree or loops_of(graph, node).tree)


class _Trial:
    """The match number ``k`` on a copy of ``graph``. ``matched``: the kernels of ``graph`` that it is about, ``gone``:
    those that its result takes the place of."""

    def __init__(self, graph: Graph, step: DaceTransformation, k: int):
        self._graph = graph
        self._copy = expand(graph)
        self._match, self._original = _matches(step, self._copy)[k], self._copy.original
        state = self._copy.state
        matched = [state.node(i) for i in self._match.subgraph.values() if i >= 0]
        tops = list(dict.fromkeys(_top(state, node) for node in matched))
        self.matched = [self._original[n] for n in tops if n in self._original]
        self.title = " + ".join(str(getattr(n, "label", n)) for n in self.matched) or "nothing"
        self.gone: list[nodes.Node] = []

    def run(self) -> list[ReadKernel]:
        """What takes the place of kernels that changed; none where nothing did. Raises Unsupported for what is none."""
        for node in self.matched:
            if isinstance(node, KernelNode) and node.tree is not None:
                raise Unsupported("the kernel has a schedule already")
        state, before, untouched = self._copy.state, _scopes(self._copy.state), self._inside()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._match.apply(state, self._copy.sdfg)
            except Exception as error:  # whatever DaCe raises: the graph is as it was
                raise Unsupported(f"DaCe fails: {type(error).__name__}: {error}") from error
        after = _scopes(state)
        different = [n for n, text in after.items() if before.get(n) != text]
        lost = [n for n in before if after.get(n) != before[n]]
        others = [n for n in [*different, *lost] if isinstance(n, nodes.AccessNode) or not _is_kernel(n)]
        if others:
            raise Unsupported(f"it changes {others[0]}, which is no kernel")
        inside = self._inside() - untouched
        read = [read_scope(self._graph, state, node, inside) for node in different]
        self.gone = [self._original[n] for n in lost]
        return self._check(read, inside)

    def _inside(self) -> set[str]:
        """Arrays without an access node outside of maps: locals of the map where they are now."""
        outside = {n.data for n in self._copy.state.scope_children()[None] if isinstance(n, nodes.AccessNode)}
        return {name for name in self._graph.arrays() if name not in outside}

    def _check(self, read: list[ReadKernel], inside: set[str]) -> list[ReadKernel]:
        """The same, unless it is what was there before. ``inside``: arrays that are locals now."""
        for name in inside:
            if self._graph.is_kept(name) or self._graph.is_given(name):
                raise Unsupported(f"array {name} is gone, which others read")
        kernels = [n.kernel for n in self.gone if isinstance(n, KernelNode)]
        same = len(kernels) == len(read) == 1 and read[0].tree is None and _alike(kernels[0], read[0].kernel)
        results = {a.array for r in read for a in r.kernel.writes()}
        before = {a.array for k in kernels for a in k.writes()}
        if missing := {n for n in before - results if self._graph.has(n) and n not in inside}:
            raise Unsupported(f"nothing writes {sorted(missing)[0]} any more")
        return [] if same else read


def _alike(a: Any, b: Any) -> bool:
    return list(map(str, a.stages)) == list(map(str, b.stages)) and list(a.extents.values()) == list(b.extents.values())


def _is_kernel(node: nodes.Node) -> bool:
    return isinstance(node, nodes.MapEntry) or type(node).__name__ == "SymbolicTasklet"


def _top(state: dace.SDFGState, node: nodes.Node) -> nodes.Node:
    """The outermost map around ``node``."""
    around, entry = state.scope_dict(), node
    if isinstance(node, nodes.MapExit):
        entry = state.entry_node(node)
    while around[entry] is not None:
        entry = around[entry]
    return entry


def _scopes(state: dace.SDFGState) -> dict[nodes.Node, str]:
    """Compute nodes outside of maps, each with all that it says: its maps, tasklets and edges."""
    children = state.scope_children()
    texts = {}
    for node in children[None]:
        if not isinstance(node, (nodes.AccessNode, nodes.MapExit)):
            inside = _inside(children, node)
            edges = sorted(
                f"{id(e.src)} {e.src_conn} {e.data} {id(e.dst)} {e.dst_conn}"
                for n in inside
                for e in state.all_edges(n)
            )
            texts[node] = "\n".join([*(f"{id(n)} {getattr(n, 'map', '')}" for n in inside), *edges])
    return texts


def _inside(children: Mapping[Any, list[Any]], node: nodes.Node) -> list[nodes.Node]:
    below = [n for child in children.get(node, ()) for n in _inside(children, child)]
    return [node, *below]


def _matches(step: DaceTransformation, graph: GraphSdfg) -> list[Any]:
    """DaCe's matches in the kernels of a graph, in an order that is the same for equal graphs."""
    kind, options = _class(step.of), dict(step.options)
    if not issubclass(kind, xf.SingleStateTransformation):
        return []
    matches = match_patterns(graph.sdfg, kind, states=[graph.state], options=[options])
    return [m for m in matches if m is not None]


def _classes() -> dict[str, type[Any]]:
    """All transformations that DaCe and what extends it define, by name: DaCe's own, then what was defined last."""
    classes: dict[str, type[Any]] = {}
    waiting: list[type[Any]] = [xf.PatternTransformation, xf.SubgraphTransformation]
    for kind in waiting:
        waiting += kind.__subclasses__()
        if kind.__module__ != xf.__name__ and not _is_of_dace(classes.get(kind.__name__)):
            classes[kind.__name__] = kind
    return classes


def _is_of_dace(kind: type[Any] | None) -> bool:
    return kind is not None and kind.__module__.partition(".")[0] == "dace"


def _class(name: str) -> type[Any]:
    classes = _classes()
    if name not in classes:
        message = f"DaCe has no transformation called {name!r}"
        raise DaceoptError(
            f"{message}{did_you_mean(name, classes)}" if name else "dace: expects the name of a transformation"
        )
    kind = classes[name]
    if not issubclass(kind, xf.SingleStateTransformation):
        raise DaceoptError(f"dace:{name} works on states or on sub-graphs that somebody chooses; a graph has one state")
    return kind


def _properties(kind: type[Any]) -> set[str]:
    own = {name for name, _ in kind.__properties__.items()} if hasattr(kind, "__properties__") else set()
    return {n for n in own if not n.startswith("_")} - {"cfg_id", "state_id", "subgraph", "expr_index"}


def _instance(step: DaceTransformation) -> None:
    """Raises DaceoptError where DaCe refuses the value of an option."""
    instance = _class(step.of)()
    for name, value in step.options.items():
        try:
            setattr(instance, name, value)
        except Exception as error:
            raise DaceoptError(f"dace:{step.of}: option {name}={value!r}: {error}") from error
