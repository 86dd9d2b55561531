"""``explain``: compiles a model as its next call would, and reports what became of it; the model stays as it is."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from daceopt.codegen.shown import by_result
from daceopt.codegen.working_memory import plan_memory
from daceopt.cost.device_machine import machine_of
from daceopt.errors import BuildError, DaceoptError, FallbackWarning, Unsupported
from daceopt.explore.report import collect, memory, model_error
from daceopt.explore.report.advice import advise
from daceopt.explore.report.collect import Direction, operators
from daceopt.explore.report.profile import profile
from daceopt.explore.report.report import Report
from daceopt.explore.report.steady_call import steady_calls
from daceopt.ir.scalar import types
from daceopt.modules.dispatch import first_line
from daceopt.modules.observe import observe
from daceopt.modules.options import Options
from daceopt.passes.choice import recipe_for
from daceopt.passes.feeds import random_inputs
from daceopt.programs.stats import effect, sizes_of
from daceopt.runtime.device_entry import place_of
from daceopt.runtime.places import common_device

if TYPE_CHECKING:
    import onnx

    from daceopt.explore.report.collect import Direction
    from daceopt.ir.graph.graph import Graph
    from daceopt.models.variants import Variant, Variants
    from daceopt.modules.piece import CompiledPiece
    from daceopt.passes.recipe import Recipe
    from daceopt.programs.compiled import CompiledPair

Tensors = dict[int, torch.Tensor]


class ModelNames(NamedTuple):
    """What a model calls its inputs and outputs, by position."""

    inputs: list[str]
    outputs: list[str]


def explain(
    model: Any,
    *inputs: Any,
    recipe: str | Recipe | None = None,
    backward: bool | None = None,
    verify: str | None = None,
    measure: bool = True,
    **kwargs: Any,
) -> Report:
    """What is supported in a model, what was fused, what moves and what it costs.

    ``model``: a module, plain or optimized (then its options are the defaults); an ONNX file's path, bytes or proto; or
    what ``from_onnx`` returned. ``inputs`` and ``kwargs``: those of a call; an ONNX model gets random ones where none
    are given. ``backward``: as for ``optimized_module``. ``measure``: also run, kernel by kernel and, for a module, as
    steady calls of a copy.

    What cannot be compiled is in the report's ``reason``, not raised. TypeError for a model of another type, and for
    inputs that an ONNX model does not take.
    """
    if isinstance(model, nn.Module):
        return _module(model, inputs, kwargs, recipe, backward, verify, measure)
    if hasattr(model, "source"):  # what from_onnx returns
        return _onnx(model.source, inputs, recipe or model.recipe, verify, measure, model.device)
    if isinstance(model, str | os.PathLike | bytes) or hasattr(model, "graph"):
        return _onnx(model, inputs, recipe or "auto", verify, measure)
    raise TypeError(f"explain takes an nn.Module, an ONNX file or what from_onnx returns, not {type(model).__name__}")


# -------------------------------------------------------------------- modules


def _module(
    model: nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    recipe: str | Recipe | None,
    backward: bool | None,
    verify: str | None,
    measure: bool,
) -> Report:
    options = getattr(getattr(model, "daceopt", None), "options", None) or Options()
    chosen = Options(
        options.recipe if recipe is None else recipe,
        options.backward if backward is None else backward,
        options.dynamic,
        "silent",
        verify,
        options.tune,
    )
    report = Report(type(model).__name__, recipe=_name(chosen.recipe))
    try:
        observation = observe(model, args, kwargs, chosen)
        report.notes += map(str, observation.breaks)
        report.notes += observation.choices
        report.reason = "; ".join(map(str, observation.refused)) or (
            "" if observation.graphs else "nothing in it was compiled"
        )
        report.operators = collect.aten_operators(
            [graph for graph, _ in observation.graphs], [b.text for b in observation.refused]
        )
        for graph, tensors in observation.graphs:
            report.recipe = recipe_for(graph.traced.device, chosen.recipe).name
            _graph(report, graph, tensors, measure)
        if measure:
            _calls(report, model, args, kwargs, chosen)
            report.advice = advise(report, [*observation.refused, *observation.breaks])
    except DaceoptError as error:
        report.reason = str(error)
    return report


def _calls(report: Report, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> None:
    try:
        report.calls = steady_calls(model, args, kwargs, options)
    except Exception as error:  # whatever a second call raises, what is known of the first is not lost
        report.notes.append(f"no times of a steady call: {first_line(error)}")


def _graph(report: Report, graph: CompiledPiece, tensors: Sequence[torch.Tensor], measure: bool) -> None:
    """Add what one graph of the module became."""
    traced, binding = graph.traced, graph.binding
    if graph.pair.backward is not None:
        report.mode = "training"
    names = ModelNames(
        [traced.names[k] for _, k in binding.inputs], [f"output {k}" for k in range(len(binding.outputs))]
    )
    user = [k for k, (_, at) in enumerate(binding.inputs) if not traced.is_state[at]]
    report.inputs += [collect.describe(names.inputs[k], tensors[k]) for k in user]
    _program(report, graph.pair, dict(enumerate(tensors)), names, measure)


# -------------------------------------------------------------------- ONNX files


def _onnx(
    source: object,
    inputs: Sequence[object],
    recipe: str | Recipe,
    verify: str | None,
    measure: bool,
    device: torch.device | None = None,
) -> Report:
    from daceopt.capture.onnx.file import load

    title = os.fspath(source) if isinstance(source, str | os.PathLike) else "ONNX model"
    report = Report(str(title), recipe=_name(recipe))
    try:
        model = load(source)
        placed = {f"input {k}": v for k, v in enumerate(inputs) if isinstance(v, torch.Tensor)}
        place = common_device(placed) or device or torch.device("cpu")
    except DaceoptError as error:
        report.reason = str(error)
        return report
    _operators(report, model)
    try:
        variants = _variants(model, recipe, verify, place.type)
        _onnx_program(report, model, variants, [_on_host(v) for v in inputs], place, measure)
        report.advice = advise(report)
    except (Unsupported, BuildError) as error:
        report.reason = f"the model as a whole, in ONNX Runtime: {error}"
    except DaceoptError as error:
        report.reason = str(error)
    return report


def _onnx_program(
    report: Report,
    model: onnx.ModelProto,
    variants: Variants,
    inputs: Sequence[object],
    place: torch.device,
    measure: bool,
) -> None:
    variant = _variant(variants, inputs)
    if variant is None:
        report.notes.append(
            f"no program yet: one is compiled at the first call with new {variants.dependence}; give explain the "
            "inputs of a call"
        )
        return
    pair, tensors_in = variant.pair, [inputs[k] for k in variant.positions] if inputs else ()
    if variant.tail is not None:
        report.notes.append(str(variant.tail))
        report.operators = collect.operators(model, variant.tail.reasons)
    tensors = {k: t.to(place) for k, t in _onnx_inputs(report, *pair.graphs.directions()[0], tensors_in).items()}
    names = ModelNames(
        [variants.input_names[k] for k in variant.positions], [f"output {v.name}" for v in pair.model.graph.output]
    )
    report.inputs = [collect.describe(names.inputs[k], t) for k, t in tensors.items()]
    _program(report, pair, tensors, names, measure)


def _on_host(value: object) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _variants(model: onnx.ModelProto, recipe: str | Recipe, verify: str | None, device: str) -> Variants:
    from daceopt.models.variants import Variants, compiler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # the report says which and why
        return Variants(model, compiler(recipe, verify=verify, device=device))


def _variant(variants: Variants, inputs: Sequence[Any]) -> Variant | None:
    """The program for these inputs; None where none are given and the program depends on them."""
    count = len(variants.input_names)
    if inputs and len(inputs) != count:
        raise TypeError(f"the model takes {count} inputs, {len(inputs)} were given")
    if not inputs:
        return variants.latest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return variants.select(lambda k: np.asarray(inputs[k]), [tuple(np.shape(value)) for value in inputs])


def _onnx_inputs(report: Report, graph: Graph, roles: Mapping[str, str], values: Sequence[object]) -> Tensors:
    """The given arrays by position, or random ones. Raises TypeError when the number or a shape does not fit."""
    random = random_inputs(graph)
    if not values:
        if graph.symbols:
            report.notes.append("no inputs were given: free sizes are small numbers, times are those of small arrays")
        return {_position(roles[n]): torch.from_numpy(random[n]) for n in graph.inputs}
    if len(values) != len(graph.inputs):
        raise TypeError(f"the model takes {len(graph.inputs)} inputs, {len(values)} were given")
    tensors: Tensors = {}
    for name in graph.inputs:
        k = _position(roles[name])
        array = np.asarray(values[k], dtype=types.to_numpy(graph.dtype(name)), order="C")
        fits = len(array.shape) == len(graph.shape(name)) and all(
            e == n for e, n in zip(graph.shape(name), array.shape) if isinstance(e, int)
        )
        if not fits:
            raise TypeError(f"input {k}: expected the shape {graph.shape(name)}, found {array.shape}")
        tensors[k] = torch.from_numpy(array)
    return tensors


def _position(role: str) -> int:
    return int(role.partition(":")[2])


# -------------------------------------------------------------------- both


def _name(recipe: str | Recipe) -> str:
    return recipe if isinstance(recipe, str) else recipe.name


def _operators(report: Report, model: onnx.ModelProto) -> None:
    report.operators = operators(model)


def _program(report: Report, pair: CompiledPair, tensors: Tensors, names: ModelNames, measure: bool) -> None:
    """Fill in what the compiled pair shows."""
    report.notes += [f"valid for {assumption}" for assumption in pair.forward.manifest.assumptions]
    report.cached, report.machine = pair.cached, machine_of(place_of(pair.forward.manifest, tensors.values()))
    report.seconds = {k: v + report.seconds.get(k, 0.0) for k, v in pair.report["seconds"].items()}
    shapes = {f"input:{k}": tuple(t.shape) for k, t in tensors.items()}
    sizes = sizes_of(pair.forward.manifest, shapes)
    effects = effect(pair.report["history"], sizes)
    report.nodes = (report.nodes[0] + effects.kernels[0], report.nodes[1] + effects.kernels[1])
    before, after = report.bytes_moved
    report.bytes_moved = (before + effects.bytes_moved[0], after + effects.bytes_moved[1])
    report.steps += collect.steps(pair.report["history"], sizes)
    directions = list(_directions(pair, names, _measure(report, pair, tensors) if measure else [{}, {}]))
    report.machine = collect.calibrate(report.machine, directions, sizes)
    modelled = measure and not pair.forward.manifest.has_stream  # the model of time is of processors
    off = model_error.summary(model_error.modelled_and_measured(directions, sizes)) if modelled else None
    report.notes += [line for line in (pair.report.get("choice"), off) if line and line not in report.notes]
    found_memory = plan_memory(pair.graphs.program, sizes)
    report.memory += memory.rows(found_memory)
    report.peak, report.saved = report.peak + found_memory.peak, report.saved + found_memory.saved_bytes
    for direction in directions:
        report.edges += collect.edges(direction, sizes, len(report.kernels))
        report.kernels += collect.kernels(direction, sizes, report.machine)


def _directions(pair: CompiledPair, names: ModelNames, seconds: list[dict[str, float]]) -> Iterator[Direction]:
    programs = zip(("forward", "backward"), pair.graphs.directions(), (pair.forward, pair.backward), seconds)
    for name, (graph, roles), program, spent in programs:
        if program is not None:
            yield Direction(name, graph, _boundary(roles, names), spent, by_result(program))


def _boundary(roles: Mapping[str, str], names: ModelNames) -> dict[str, str]:
    """How people call the arrays that a program writes at its boundary."""
    labels = {f"output:{k}": name for k, name in enumerate(names.outputs)}
    labels |= {f"grad_input:{k}": f"gradient of {name}" for k, name in enumerate(names.inputs)}
    return {array: labels[role] for array, role in roles.items() if role in labels}


def _measure(report: Report, pair: CompiledPair, tensors: Tensors) -> list[dict[str, float]]:
    """Seconds by node of each direction; a note when a run fails."""
    dense = {k: t.detach().contiguous() for k, t in tensors.items()}
    try:
        with torch.no_grad():
            return profile(pair, dense)
    except DaceoptError as error:
        report.notes.append(f"no times: {error}")
        return [{}, {}]
