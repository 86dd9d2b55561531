"""The way through, in one file: capture -> import -> recipe -> differentiate -> recipe -> build.

Only the first step runs on a warm start: the trace's fingerprint finds the built programs in the cache.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daceopt._version import __version__
from daceopt.build import machine
from daceopt.build.assemble import load_program
from daceopt.build.cache import default_cache, key
from daceopt.build.executable import Executable
from daceopt.errors import BuildError, FallbackWarning, Unsupported
from daceopt.logs import caller_depth

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from daceopt.build.bundle import Bundle
    from daceopt.capture.trace import Trace
    from daceopt.ir.graph import Graph
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
    backward: Graph | None = None
    backward_roles: dict[str, str] = field(default_factory=dict)
    history: list[Step] = field(default_factory=list)
    fallbacks: dict[str, str] = field(default_factory=dict)  # operator that runs in ONNX Runtime -> why
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


class CompiledPair:
    """A forward program, its backward program if one was asked for, and how they came about.

    ``report`` is plain JSON: ``history`` (one record per recipe step) and ``seconds`` per phase. ``graphs`` derives the
    graphs again when they are asked for after a warm start.
    """

    def __init__(self, report: dict[str, Any], forward: Executable, backward: Executable | None, source: _Source):
        self.report, self.forward, self.backward = report, forward, backward
        self.cached = source.graphs is None
        self.recipe = source.recipe
        self._source = source

    @cached_property
    def graphs(self) -> Graphs:
        return self._source.graphs or self._source.derive()

    @property
    def model(self) -> onnx.ModelProto:
        """The ONNX model that was compiled: given, or exported from the trace."""
        return self._source.onnx()


@dataclass(frozen=True)
class Gradients:
    """What to differentiate: model outputs by model inputs, by position, and whether to store or recompute (see
    ``autodiff``)."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    policy: str = "recompute"


@dataclass
class _Source:
    """What the graphs can be derived from."""

    trace: Trace | None
    model: onnx.ModelProto | None
    recipe: Recipe
    wanted: tuple[int, ...]
    verify: str | None = None
    fallback: bool = False
    policy: str = "recompute"
    patient: bool = False
    graphs: Graphs | None = None

    def derive(self) -> Graphs:
        started = time.perf_counter()
        constants = self._constants()
        graphs = derive(
            self.onnx(), constants, self.recipe, self._gradients(), self.verify, self.fallback, self.patient
        )
        graphs.seconds = {"capture": time.perf_counter() - started - sum(graphs.seconds.values()), **graphs.seconds}
        return graphs

    def onnx(self) -> onnx.ModelProto:
        if self.model is not None:
            return self.model
        assert self.trace is not None
        return self.trace.to_onnx()

    def _gradients(self) -> Gradients | None:
        if not self.wanted or self.trace is None:
            return None
        users = [k for k, s in enumerate(self.trace.graph_outputs) if s.kind == "user"]
        return Gradients(self.wanted, tuple(users), self.policy)

    def _constants(self) -> dict[int, np.ndarray]:
        specs = self.trace.inputs if self.trace is not None else []
        return {k: s.value.detach().numpy() for k, s in enumerate(specs) if s.value is not None}


def compile_trace(
    trace: Trace,
    *,
    recipe: str | Recipe = "auto",
    wanted: Sequence[int] = (),
    verify: str | None = None,
    fallback: bool = False,
) -> CompiledPair:
    """Compile a traced call; with ``wanted`` (positions in ``trace.inputs`` whose gradients are needed) also its
    backward pass.

    ``verify`` as in :class:`daceopt.recipe.Runner`. ``fallback``: without gradients, operators that have no native form
    run in ONNX Runtime, with a warning. Raises Unsupported, CaptureError, BuildError or VerificationError with the
    reason.
    """
    source = _Source(trace, None, _recipe(recipe), tuple(wanted), verify, fallback and not wanted)
    return _compile(source, trace.fingerprint)


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
    source = _Source(None, model, _recipe(recipe), (), verify, fallback, patient=patient)
    if bundle is not None:
        return _bundled(source, bundle)
    return _compile(source, key("onnx", model.SerializeToString(deterministic=True)))


def _recipe(recipe: str | Recipe) -> Recipe:
    if not isinstance(recipe, str):
        return recipe
    from daceopt import recipes

    return recipes.get(recipe)


def _compile(source: _Source, fingerprint: str) -> CompiledPair:
    identity = key(
        "pair",
        fingerprint,
        source.recipe.fingerprint(),
        source.wanted,
        source.verify or "",
        source.policy,
        source.fallback,
        source.patient,
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


def _bundled(source: _Source, bundle: Bundle) -> CompiledPair:
    graphs = source.graphs = source.derive()
    executable = bundle.add(graphs.forward, graphs.forward_roles, _implement)
    _warn(graphs.fallbacks)
    return CompiledPair(_report(graphs, []), executable, None, source)


def _report(graphs: Graphs, programs: Sequence[str]) -> dict[str, Any]:
    history = [vars(s) for s in graphs.history]
    return {"programs": programs, "fallbacks": graphs.fallbacks, "seconds": graphs.seconds, "history": history}


def _warn(fallbacks: dict[str, str]) -> None:
    for operator, reason in fallbacks.items():
        message = f"operator {operator} runs in ONNX Runtime: {reason}"
        warnings.warn(message, FallbackWarning, stacklevel=caller_depth())


def _write(folder: Path, identity: str, source: _Source) -> None:
    from daceopt.build import program

    graphs = source.graphs = source.derive()
    with graphs.timed("build"):
        parts = [(graphs.forward, graphs.forward_roles)]
        if graphs.backward is not None:
            parts.append((graphs.backward, graphs.backward_roles))
        names = program.build(identity, parts, _implement)
    (folder / REPORT).write_text(json.dumps(_report(graphs, names), default=str))


def _implement(graph: Graph) -> Any:
    from daceopt import libs

    return libs.implement(graph)


def derive(
    model: onnx.ModelProto,
    constants: dict[int, np.ndarray],
    recipe: Recipe,
    gradients: Gradients | None = None,
    verify: str | None = None,
    fallback: bool = False,
    patient: bool = False,
) -> Graphs:
    """From a checked ONNX model to the graphs that are built: import, recipe, differentiation, recipe.

    ``constants``: model input position -> value known now. ``gradients``: None for inference. ``patient`` as in
    ``importer.import_model``.
    """
    from daceopt.importer import import_model
    from daceopt.recipe import Runner

    runner = Runner(recipe, verify)
    fallbacks: dict[str, str] = {}
    graph = import_model(
        model,
        fallback=fallback and gradients is None,
        refused=lambda n, why: fallbacks.setdefault(n.op_type, why),
        patient=patient,
    )
    roles = {name: f"input:{k}" for k, name in enumerate(graph.inputs)}
    roles |= {name: f"output:{k}" for k, name in enumerate(graph.outputs)}
    graphs = Graphs(graph, roles, fallbacks=fallbacks)
    by_position = list(graph.inputs)
    for position, value in constants.items():
        graph.bind(by_position[position], value)
    outputs = list(graph.outputs)
    with graphs.timed("recipe"):
        graphs.history += runner.run(graph, part="before")
    _rename_outputs(graph, roles, outputs)
    if gradients is not None:
        with graphs.timed("differentiate"):
            _differentiate(graphs, by_position, gradients)
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
        raise Unsupported("no output depends on an input or parameter that requires a gradient")
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
