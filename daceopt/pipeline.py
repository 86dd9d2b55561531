"""The way through, in one file: import -> recipe -> differentiate -> recipe -> build.

None of it runs on a warm start: the fingerprint of what was captured finds the built programs in the cache.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daceopt import progress
from daceopt._version import __version__
from daceopt.build import machine
from daceopt.build.assemble import load_program
from daceopt.build.cache import default_cache, key
from daceopt.build.executable import Executable
from daceopt.errors import BuildError, FallbackWarning, Unsupported
from daceopt.logs import caller_depth

if TYPE_CHECKING:
    import onnx

    from daceopt.build.bundle import Bundle
    from daceopt.ir.graph import Graph
    from daceopt.ir.imported import Gradients, Imported
    from daceopt.recipe import Recipe, Step

logger = logging.getLogger("daceopt.pipeline")

REPORT = "report.json"


@dataclass
class Graphs:
    """Both directions as graphs, with the roles of their arguments at the boundary.

    Roles: ``input:k`` and ``output:k`` of the forward program; the backward program reads ``input:k``, ``output:k`` and
    ``grad:k`` (the gradient of output k) and writes ``grad_input:k``.
    """

    forward: Graph
    forward_roles: dict[str, str]
    imported: Imported
    backward: Graph | None = None
    backward_roles: dict[str, str] = field(default_factory=dict)
    history: list[Step] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            with progress.phase(phase):
                yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


class CompiledPair:
    """A forward program, its backward program if one was asked for, and how they came about.

    ``report`` is plain JSON: ``history`` (one record per recipe step), ``seconds`` per phase, ``fallbacks`` and
    ``hosted`` (operators without native form -> reason) and ``notes`` (of the front end). ``graphs`` derives the graphs
    again when they are asked for after a warm start.
    """

    def __init__(self, report: dict[str, Any], forward: Executable, backward: Executable | None, source: Source):
        self.report, self.forward, self.backward = report, forward, backward
        self.cached = source.graphs is None
        self.recipe = source.recipe
        self.source = source

    @cached_property
    def graphs(self) -> Graphs:
        return self.source.graphs or self.source.derive()

    @property
    def model(self) -> onnx.ModelProto:
        """The ONNX model that was compiled. Raises Unsupported for what came from PyTorch."""
        if self.source.model is None:
            raise Unsupported("this program was not compiled from an ONNX model")
        return self.source.model


@dataclass
class Source:
    """What the graphs can be derived from, and how."""

    load: Callable[[], Imported]
    recipe: Recipe
    verify: str | None = None
    model: onnx.ModelProto | None = None
    graphs: Graphs | None = None

    def derive(self) -> Graphs:
        started = time.perf_counter()
        imported = self.load()
        capture = time.perf_counter() - started
        graphs = derive(imported, self.recipe, self.verify)
        graphs.seconds = {"capture": capture, **graphs.seconds}
        return graphs


def compile_graph(
    fingerprint: str, load: Callable[[], Imported], *, recipe: str | Recipe = "auto", verify: str | None = None
) -> CompiledPair:
    """Compile what ``load`` gives, unless the cache has it: ``fingerprint`` identifies it, gradients included.

    ``verify`` as in :class:`daceopt.recipe.Runner`. Raises Unsupported, BuildError or VerificationError with the
    reason.
    """
    return _compile(Source(load, _recipe(recipe), verify), fingerprint)


def compile_model(
    model: onnx.ModelProto,
    *,
    recipe: str | Recipe = "auto",
    verify: str | None = None,
    fallback: bool = True,
    patient: bool = False,
    bundle: Bundle | None = None,
) -> CompiledPair:
    """Compile a checked, shape-inferred ONNX model for inference; ``fallback`` runs operators without a native form in
    ONNX Runtime, with a warning.

    ``patient``: NotKnownYet says what has to be known of the inputs, where that is what is missing. ``bundle``: compile
    it together with others, past the cache.
    """

    def load() -> Imported:
        from daceopt.importer import import_model
        from daceopt.ir.imported import Imported

        fallbacks: dict[str, str] = {}
        graph = import_model(
            model, fallback=fallback, refused=lambda n, why: fallbacks.setdefault(n.op_type, why), patient=patient
        )
        return Imported(graph, fallbacks=fallbacks)

    source = Source(load, _recipe(recipe), verify, model)
    if bundle is not None:
        return bundled(source, bundle)
    return _compile(source, key("onnx", model.SerializeToString(deterministic=True), fallback, patient))


def _recipe(recipe: str | Recipe) -> Recipe:
    if not isinstance(recipe, str):
        return recipe
    from daceopt import recipes

    return recipes.get(recipe)


def _compile(source: Source, fingerprint: str) -> CompiledPair:
    identity = key(
        "pair",
        fingerprint,
        source.recipe.fingerprint(),
        source.verify or "",
        machine.fingerprint(),
        __version__,
        _own_source(),
        _foreign_rules(),
    )
    store = default_cache()
    for _ in range(2):
        folder = store.build("pair", identity, lambda entry: _write(entry, identity, source))
        report = json.loads((folder / REPORT).read_text())
        programs = [load_program(name, store) for name in report["programs"]]
        if None not in programs:
            forward, backward = (*programs, None)[:2]
            _warn(report["fallbacks"])
            return CompiledPair(report, forward, backward, source)  # type: ignore[arg-type]
        store.discard("pair", identity)
    raise BuildError(
        f"the cache in {store.folder} loses programs as soon as they are written; see `python -m daceopt doctor`"
    )


def bundled(source: Source, bundle: Bundle) -> CompiledPair:
    """Compile as part of ``bundle``, past the cache: many small programs in one library."""
    graphs = source.graphs = source.derive()
    forward = bundle.add(graphs.forward, graphs.forward_roles, _implement)
    backward = bundle.add(graphs.backward, graphs.backward_roles, _implement) if graphs.backward is not None else None
    _warn(graphs.imported.fallbacks)
    return CompiledPair(_report(graphs, []), forward, backward, source)


def _report(graphs: Graphs, programs: Sequence[str]) -> dict[str, Any]:
    imported = graphs.imported
    return {
        "programs": programs,
        "fallbacks": imported.fallbacks,
        "hosted": imported.hosted,
        "notes": imported.notes,
        "seconds": graphs.seconds,
        "history": [vars(s) for s in graphs.history],
    }


def _warn(fallbacks: dict[str, str]) -> None:
    for operator, reason in fallbacks.items():
        message = f"operator {operator} runs in ONNX Runtime: {reason}"
        warnings.warn(message, FallbackWarning, stacklevel=caller_depth())


def _write(folder: Path, identity: str, source: Source) -> None:
    from daceopt.build import program

    graphs = source.graphs = source.derive()
    with graphs.timed("build"):
        parts = [(graphs.forward, graphs.forward_roles)]
        if graphs.backward is not None:
            parts.append((graphs.backward, graphs.backward_roles))
        names = program.build(identity, parts, _implement)
    if source.verify == "numerics":
        with graphs.timed("verify"):
            _check_built(graphs, names)
    (folder / REPORT).write_text(json.dumps(_report(graphs, names), default=str))


def _check_built(graphs: Graphs, names: Sequence[str]) -> None:
    """Run what was compiled beside the interpreter. Raises VerificationError for a difference."""
    from daceopt.verification_built import Built, check

    directions = [(graphs.forward, graphs.forward_roles), (graphs.backward, graphs.backward_roles)]
    programs = [load_program(name) for name in names]
    built = [Built(g, roles, p) for (g, roles), p in zip(directions, programs) if g is not None and p is not None]
    check(*built)


def _implement(graph: Graph) -> Any:
    from daceopt import libs

    return libs.implement(graph)


def derive(imported: Imported, recipe: Recipe, verify: str | None = None) -> Graphs:
    """From a graph of operator nodes to the graphs that are built: recipe, differentiation, recipe."""
    from daceopt.recipe import Runner

    runner = Runner(recipe, verify)
    graph = imported.graph
    roles = {name: f"input:{k}" for k, name in enumerate(graph.inputs)}
    roles |= {name: f"output:{k}" for k, name in enumerate(graph.outputs)}
    graphs = Graphs(graph, roles, imported)
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    with graphs.timed("recipe"):
        graphs.history += runner.run(graph, part="before")
    _rename_outputs(graph, roles, outputs)
    if imported.gradients is not None:
        with graphs.timed("differentiate"):
            _differentiate(graphs, inputs, imported.gradients)
    with graphs.timed("recipe"):
        _finish(graphs, runner)
    return graphs


def _rename_outputs(graph: Graph, roles: dict[str, str], before: Sequence[str]) -> None:
    """A transformation may put another array in an output's place; the position, not the name, is what stays."""
    for k, (old, new) in enumerate(zip(before, graph.outputs)):
        if old != new:
            roles.pop(old, None)
            roles[new] = f"output:{k}"


def _differentiate(graphs: Graphs, inputs: Sequence[str], gradients: Gradients) -> None:
    from daceopt.autodiff import differentiate
    from daceopt.ir import types

    graph = graphs.forward
    outputs = [n for n in (graph.outputs[k] for k in gradients.outputs) if types.is_float(graph.dtype(n))]
    names = [inputs[k] for k in gradients.inputs]
    result = differentiate(graph, outputs, names, policy=gradients.policy)
    if all(v is None for v in result.grad_inputs.values()):
        return  # every gradient is zero
    graphs.forward, graphs.backward = result.forward, result.backward
    forward, backward = result.forward, result.backward
    roles = {n: r for n, r in graphs.forward_roles.items() if n in backward.inputs}
    roles |= {g: f"grad:{forward.outputs.index(n)}" for n, g in result.grad_outputs.items()}
    backward.outputs.clear()
    backward.sdfg.name = f"{forward.sdfg.name}_backward"
    for name, g in result.grad_inputs.items():
        if g is not None:
            roles[_own_output(backward, g, roles)] = f"grad_input:{inputs.index(name)}"
    forward.saved = [n for n in result.saved if n not in roles]
    backward.saved = list(forward.saved)
    # both programs take the same size symbols, in the same order, whichever input the backward still reads
    backward.symbols = dict(forward.symbols)
    graphs.backward_roles = {**{n: graphs.forward_roles[n] for n, _ in forward.symbols.values()}, **roles}


def _own_output(graph: Graph, name: str, taken: dict[str, str]) -> str:
    """``name`` as the graph's next output, or a copy of it where it is an output or an input already, or a view."""
    from daceopt.ir.builder import Builder

    if name in taken or name in graph.inputs or name in graph.saved or name in graph.constants or graph.is_view(name):
        name = Builder(graph, "gradient").copy(name)
    graph.add_output(name)
    return name


def _follow_layout(graph: Graph, name: str, strides: Sequence[Any]) -> None:
    """Lay out the saved array ``name`` as the forward graph did; what cannot follow reads a copy in the old layout."""
    from daceopt.ir.builder import Builder

    try:
        graph.set_strides(name, strides)
    except ValueError:
        saved = list(graph.saved)
        twin = graph.add_array(name, graph.shape(name), graph.dtype(name), graph.strides(name))
        graph.replace_uses(name, twin)
        graph.saved = saved
        graph.set_strides(name, strides)
        Builder(graph, "layout").copy(name, out=twin)


def _finish(graphs: Graphs, runner: Any) -> None:
    """The rest of the recipe, forward first: the backward graph reads saved arrays in the layout that the forward gave
    them."""
    forward_outputs = list(graphs.forward.outputs)
    graphs.history += runner.run(graphs.forward, part="after")
    _rename_outputs(graphs.forward, graphs.forward_roles, forward_outputs)
    if graphs.backward is None:
        return
    for source, name in zip(graphs.forward.saved, graphs.backward.saved):
        if graphs.forward.strides(source) != graphs.backward.strides(name):
            _follow_layout(graphs.backward, name, graphs.forward.strides(source))
    outputs = list(graphs.backward.outputs)
    graphs.history += runner.run(graphs.backward, part="after")
    for old, new in zip(outputs, graphs.backward.outputs):
        if old != new:
            graphs.backward_roles[new] = graphs.backward_roles.pop(old)


def _foreign_rules() -> str:
    """Operator rules that the user registered; nobody registers any without importing the registry."""
    registry = sys.modules.get("daceopt.ops.registry")
    return registry.foreign_source() if registry is not None else ""


def _own_source() -> str:
    """Digest of daceopt's own code, so that an edited transformation or printer is never served from the cache."""
    global _digest
    if _digest is None:
        import daceopt.recipes
        import daceopt.transformations

        packages = [Path(__file__).parent, *map(Path, (*daceopt.recipes.__path__, *daceopt.transformations.__path__))]
        files = sorted(f for p in packages for pattern in ("*.py", "*.h", "*.cpp") for f in p.rglob(pattern))
        _digest = key(*((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files))
    return _digest


_digest: str | None = None
