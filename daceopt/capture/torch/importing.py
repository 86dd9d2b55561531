"""From a graph of Dynamo to what the pipeline compiles: the graph of operator nodes, its gradients and its binding."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import call_text as call_text
from daceopt.capture.torch import derivative, exchanges, guards, saved
from daceopt.capture.torch.calls import Context
from daceopt.capture.torch.collection import pause
from daceopt.capture.torch.eager_memory import saved_bytes
from daceopt.capture.torch.functional import Functional, eager_types, functional
from daceopt.capture.torch.gradient_scopes import hidden_arguments
from daceopt.capture.torch.plan import Plan
from daceopt.capture.torch.stages import stages
from daceopt.capture.torch.traced import Traced
from daceopt.capture.torch.translation import Importer, Translation
from daceopt.errors import Unsupported
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import checks, scalar, types
from daceopt.ops.core import widening
from daceopt.ops.core.assumptions import assume
from daceopt.runtime.arithmetic import names
from daceopt.runtime.binding import Binding, Output, Result
from daceopt.torch_internals.pytree import tree_leaves

logger = logging.getLogger("daceopt.importer")


def load(traced: Traced, target: str = "cpu") -> Imported:
    """Trace to ATen and import for a target. Raises Unsupported with the reason."""
    with pause():
        return _load(traced, target)


def _load(traced: Traced, target: str) -> Imported:
    exchanges.check(traced.graph.graph)
    saved.check(traced.graph.graph)
    environment = guards.environment(traced.inputs)
    before = guards.known_conditions(environment)
    hidden_arguments(traced.graph.graph)  # whose reason comes first
    body = functional(traced.graph, traced.inputs)
    _check_mutations(traced, body)
    _check_types(traced, body)
    context = Context(assumed=guards.since(environment, before))
    result = import_plan(traced, body, Plan(traced, body), target, context)
    result.notes["guards"] = context.assumed  # derivatives, traced later, add to it
    return result


def import_plan(
    traced: Traced, body: Functional, planned: Plan, target: str = "cpu", context: Context | None = None
) -> Imported:
    """Build the graph that computes what ``planned`` says."""
    context = context or Context()
    graph = Graph("program", target)
    graph.source.precision = torch.get_float32_matmul_precision()
    trains = any(o.differentiable for o in planned.outputs)
    translation = Translation(graph, context, whole=derivative.op_type if trains else None)
    inputs, binding, symbols = _add_inputs(translation, traced)
    for argument, _ in planned.mutations:
        if isinstance(inputs[argument], str):
            translation.note_changing(inputs[argument])
    _check_sizes(planned.results, symbols)
    _assume_sizes(translation, traced)
    importer = Importer(translation, body.graph, body.backwards, traced.draws)
    importer.run(inputs, (*planned.nodes, *planned.asserted))
    for node, output in zip(planned.nodes, planned.outputs, strict=True):
        _add_output(
            graph, importer.values[node], (*output.order, len(output.order)) if output.complex else output.order
        )
    for node in planned.asserted:
        _add_output(graph, _add_assertion(graph, importer.values[node]), ())
    _replace(graph, planned, binding, exchanges.unversioned_arguments(traced.graph.graph))
    widening.settle(graph)
    graph.prune()
    logger.info("imported a graph of Dynamo: %d operators, %d inputs", len(graph.operators()), len(graph.inputs))
    for name, why in context.hosted.items():
        logger.debug("  %s runs in ATen: %s", name, why)
    notes = {"binding": _binding(traced, body, planned, binding, symbols).to_json()}
    gradients = _gradients(graph, traced, planned, binding)
    return Imported(graph, gradients, hosted=context.hosted, notes=notes, device=traced.device)


def _binding(
    traced: Traced,
    body: Functional,
    planned: Plan,
    binding: Sequence[tuple[str, int]],
    symbols: dict[str, tuple[int, int | None]],
) -> Binding:
    return Binding(
        tuple(binding),
        (*planned.outputs, *[Output((), False)] * len(planned.asserted)),
        tuple(planned.results),
        tuple(planned.mutations),
        symbols,
        _complex(traced, binding),
        stages(body, planned, traced.results),
        exchanges.unversioned_arguments(traced.graph.graph),
        exchanges.exchanged_arguments(traced.graph.graph),
    )


def _check_sizes(results: Sequence[Result], symbols: Collection[str]) -> None:
    """Raises Unsupported for a result that is a whole number, or a view, by more than sizes: by an element of a tensor,
    or by a float of the call."""
    leaves = tree_leaves([r.views for r in results], is_leaf=lambda x: isinstance(x, dict))
    sizes = [x["size"] for x in leaves if isinstance(x, dict) and "size" in x]
    sizes += [r.value for r in results if r.kind == "size"]
    unknown = {name for size in sizes for name in names(size)} - set(symbols)
    if unknown:
        raise Unsupported(
            f"a view or a whole number that only the data decides, or a float of the call ({min(unknown)})"
        )


def _add_assertion(graph: Graph, name: str) -> str:
    """The condition ``name``, of which the run is an error where it does not hold."""
    check = lambda holds: scalar.checked(holds, holds, checks.ASSERTION)  # noqa: E731
    return str(Builder(graph, "assert").elementwise(check, name, dtype=graph.dtype(name), label="assert"))


def _replace(graph: Graph, planned: Plan, binding: Sequence[tuple[str, int]], unversioned: Sequence[int]) -> None:
    """Say which outputs are new values of inputs that autograd does not see, in the layout of these."""
    position = {argument: k for k, (kind, argument) in enumerate(binding) if kind == "tensor"}
    for argument, k in planned.mutations:
        output = planned.outputs[k]
        in_rows = list(output.order) == list(range(len(output.order)))
        if argument not in unversioned and in_rows and not (output.differentiable or output.complex or output.strides):
            graph.replaced.setdefault(k, graph.inputs[position[argument]])


def _complex(traced: Traced, binding: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    return tuple(k for k, (kind, at) in enumerate(binding) if kind == "tensor" and traced.inputs[at].is_complex())


def _check_mutations(traced: Traced, body: Functional) -> None:
    for k in body.mutated:
        if traced.requires_grad[k] and not traced.changed[k]:
            raise Unsupported(f"{traced.names[k]}, which requires a gradient, is changed where gradients are off")


def _check_types(traced: Traced, body: Functional) -> None:
    """The trace has to give what Dynamo promised to the code around the graph, or what PyTorch gives instead."""
    promised, traced_results = (g.graph.output_node().args[0] for g in (traced.graph, body.graph))
    in_eager = cache(lambda: eager_types(traced.graph, traced.inputs))
    for k, (before, after) in enumerate(zip(promised, traced_results)):
        expected = before.meta.get("example_value") if isinstance(before, fx.Node) else None
        value = after.meta.get("val") if isinstance(after, fx.Node) else None
        if not (isinstance(expected, torch.Tensor) and isinstance(value, torch.Tensor)):
            continue
        if expected.dtype != value.dtype and value.dtype != in_eager()[k]:
            raise Unsupported(f"result {k} is a {value.dtype} in the trace; expected {expected.dtype}")
        if value.device.type != traced.device:
            where = f"result {k} is on device {value.device}"
            raise Unsupported(f"{where}; expected one where the arguments are: {traced.device}")


def _gradients(graph: Graph, traced: Traced, planned: Plan, binding: Sequence[tuple[str, int]]) -> Gradients | None:
    outputs = tuple(k for k, o in enumerate(planned.outputs) if o.differentiable)
    inputs = tuple(k for k, (kind, at) in enumerate(binding) if kind == "tensor" and traced.requires_grad[at])
    if not outputs or not inputs:
        return None
    return Gradients(inputs, outputs, sizes=_sizes(graph, traced, binding), reference=lambda: saved_bytes(traced))


def _sizes(graph: Graph, traced: Traced, binding: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Size symbols of the graph -> what they are in the call that is compiled for."""
    place = {name: at for name, (_, at) in zip(graph.inputs, binding, strict=True)}
    sizes: dict[str, int] = {}
    for symbol, (name, axis) in graph.symbols.items():
        value = traced.inputs[place[name]]
        size = value.shape[axis] if isinstance(value, torch.Tensor) else value
        sizes[symbol] = guards.example(size)
    return sizes


def _add_inputs(
    t: Translation, traced: Traced
) -> tuple[list[Any], list[tuple[str, int]], dict[str, tuple[int, int | None]]]:
    """Inputs for all tensors; a size that is no tensor's extent gets an empty input as long as it."""
    values: list[Any] = []
    binding: list[tuple[str, int]] = []
    read = _torch_symbols(traced)
    t.sizes.told = frozenset(read)
    memos = [getattr(x, "item_memo", None) for x in traced.inputs]
    t.sizes.held = frozenset(str(s) for m in memos if isinstance(m, torch.SymInt) for s in m.node.expr.free_symbols)
    for k, x in enumerate(traced.inputs):
        if isinstance(x, torch.Tensor):
            promise = t.promise(x)
            values.append(t.graph.add_input(traced.names[k], promise.shape, promise.dtype))
            binding.append(("tensor", k))
        else:
            values.append(t.sizes.dim(x) if isinstance(x, (int, torch.SymInt)) else x)
    symbols = _define_symbols(t.graph, binding)
    for k, value in enumerate(values):
        if not isinstance(value, (str, int)) and value is not None and str(value) not in symbols:
            name = t.graph.add_input("size", (0, value), types.from_name("uint8"))
            binding.append(("size", k))
            t.graph.symbols[str(value)] = (name, 1)
    return values, binding, read


def _assume_sizes(t: Translation, traced: Traced) -> None:
    """What PyTorch guards anyway decides about code: a mirrored place is in its array, an extent is not 0."""
    for name, lower in guards.least(traced.inputs).items():
        size = t.sizes.symbol(name)
        if str(size) in t.graph.symbols:
            assume(t.graph, size - lower)


def _define_symbols(graph: Graph, binding: Sequence[tuple[str, int]]) -> dict[str, tuple[str, int]]:
    for name in graph.inputs:
        for axis, extent in enumerate(graph.shape(name)):
            if not isinstance(extent, int) and extent.is_Symbol:
                graph.symbols.setdefault(str(extent), (name, axis))
    return graph.symbols


def _torch_symbols(traced: Traced) -> dict[str, tuple[int, int | None]]:
    """PyTorch's size symbols -> the argument, and the axis if it is a tensor, where the value is read."""
    symbols: dict[str, tuple[int, int | None]] = {}
    for k, x in enumerate(traced.inputs):
        sizes = list(enumerate(x.shape)) if isinstance(x, torch.Tensor) else [(None, x)]
        for axis, size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                symbols.setdefault(str(size.node.expr), (k, axis))
    return symbols


def _add_output(graph: Graph, name: object, order: Sequence[int]) -> None:
    """Declare an output in the order in which its axes are in memory."""
    if not isinstance(name, str):
        raise Unsupported(f"a result became {name!r}; expected an array")
    b = Builder(graph, "output")
    if list(order) != list(range(len(order))):
        name = b.transpose(name, order)
    needs_copy = name in graph.outputs or graph.producer(name) is None or graph.is_view(name)
    graph.add_output(b.copy(name) if needs_copy else name)
