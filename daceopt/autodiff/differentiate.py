"""Reverse-mode differentiation: the graph is walked backward, one rule per node, then cut in two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from daceopt.autodiff import forwarding, rules, splitting
from daceopt.autodiff.extremes import compared_arrays
from daceopt.autodiff.late_order import late_order
from daceopt.autodiff.path import Path
from daceopt.autodiff.renewal import renew
from daceopt.autodiff.storage import DEFAULT, Storage
from daceopt.autodiff.storage_reading import within_budget
from daceopt.autodiff.sums import total
from daceopt.autodiff.views import joined_adjoint, view_adjoint
from daceopt.ir.data.arrays import SEED
from daceopt.ir.data.provenance import backward_label, label_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder


@dataclass
class Derivative:
    """A forward graph and the graph of its vector-Jacobian product.

    ``saved``: arrays that the forward leaves in memory and the backward reads, under the same name in both graphs.
    ``grad_outputs``: forward output -> the backward input that takes its gradient (same shape and dtype; outputs that
    depend on no wanted input have none). ``grad_inputs``: wanted input -> the backward output with its gradient, None
    when no path leads there. ``forward_inputs_needed``: forward inputs that the backward reads again, under the same
    name. ``decision``: what was chosen for a budget. The inputs of ``backward`` are the gradients, then ``saved``, then
    those. Size symbols are the forward's; the backward defines each by one of its own inputs where one has that extent,
    else as the forward does.
    """

    forward: Graph
    backward: Graph
    saved: list[str]
    grad_outputs: dict[str, str]
    grad_inputs: dict[str, str | None]
    forward_inputs_needed: list[str]
    decision: str = ""


def differentiate(graph: Graph, outputs: Sequence[str], wrt: Sequence[str], storage: Storage = DEFAULT) -> Derivative:
    """Derive the backward graph of ``graph`` (left as it is) from gradients of ``outputs`` to gradients of the inputs
    ``wrt``.

    ``storage`` says what is stored and what is computed again. An output listed twice has one gradient: the caller
    adds. Raises Unsupported, with the node and the reason, for what cannot be differentiated; ValueError for a name
    that is no output or input; DaceoptError for names in ``storage`` that do not exist.
    """
    _check_names(graph, outputs, wrt)
    forward = graph.copy()
    _prepare(forward, outputs, wrt)
    joint = forward.copy()
    local = _split_fused(joint, Path(joint, outputs, wrt))
    boundary = forwarding.Boundary(set(joint.nodes()), {*joint.arrays(), SEED}, local, compared_arrays(joint))
    grad_outputs, grad_inputs = _add_gradients(joint, outputs, wrt)
    saved, needed, decision = _cut(joint, graph, boundary, list(grad_outputs.values()), storage)
    forward.saved, joint.saved = list(saved), list(saved)
    _relocate_symbols(joint)
    return Derivative(forward, joint, saved, grad_outputs, grad_inputs, needed, decision)


def extend(graph: Graph, outputs: Sequence[str], wrt: Sequence[str]) -> tuple[dict[str, str], dict[str, str | None]]:
    """Add the gradient computation to ``graph`` itself, which may still compute all of its arrays.

    The gradients of ``wrt`` become its only outputs, those of ``outputs`` its last inputs; returns both by name.
    """
    _prepare(graph, outputs, wrt)
    _split_fused(graph, Path(graph, outputs, wrt))
    return _add_gradients(graph, outputs, wrt)


def _prepare(graph: Graph, outputs: Sequence[str], wrt: Sequence[str]) -> None:
    for node in Path(graph, outputs, wrt).nodes:
        with graph.label_nodes(label_of(node), graph.origins_of(node)):
            rules.prepare(Builder(graph), node)


def _add_gradients(
    joint: Graph, outputs: Sequence[str], wrt: Sequence[str]
) -> tuple[dict[str, str], dict[str, str | None]]:
    path = Path(joint, outputs, wrt)
    reverse = _Reverse(joint, path)
    grad_outputs = {name: reverse.seed(name) for name in dict.fromkeys(outputs) if name in path}
    gradients = reverse.run(dict.fromkeys(wrt))
    _declare_outputs(joint, gradients)
    return grad_outputs, gradients


def _check_names(graph: Graph, outputs: Sequence[str], wrt: Sequence[str]) -> None:
    for kind, names, own in (("output", outputs, graph.outputs), ("input", wrt, graph.inputs)):
        for name in names:
            if name not in own:
                raise ValueError(f"{name!r} is no {kind} of the graph; expected one of {own}")


def _split_fused(graph: Graph, path: Path) -> set[str]:
    local: set[str] = set()
    for node in path.nodes:
        if isinstance(node, KernelNode):
            local |= splitting.split(graph, node)[1]
    return local


class _Reverse:
    """Walks the path backward and keeps, per array, the contributions to its gradient."""

    def __init__(self, graph: Graph, path: Path):
        self._graph, self._path = graph, path
        self._parts: dict[str, list[str]] = {}
        self._wholes: dict[str, str | None] = {}  # gradients of arrays that are written in parts

    def seed(self, output: str) -> str:
        """A backward input for the gradient of ``output``."""
        graph = self._graph
        name = graph.add_input(f"d_{output}", graph.shape(output), graph.dtype(output))
        self._parts.setdefault(output, []).append(name)
        return name

    def run(self, wrt: Iterable[str]) -> dict[str, str | None]:
        """The gradients of ``wrt``, None where nothing contributes. Each is completed as soon as all readers of its
        array were reversed: what it is made of need not be kept for longer."""
        readers = {name: self._graph.all_consumers(name) for name in wrt}
        last = {name: next((n for n in self._path.nodes if n in read), None) for name, read in readers.items()}
        complete: dict[Node, list[str]] = {}
        for name, node in last.items():
            complete.setdefault(node, []).append(name)
        result = dict.fromkeys(readers)
        for node in (*reversed(self._path.nodes), None):
            if node is not None:
                with self._graph.label_nodes(backward_label(node), self._graph.origins_of(node)):
                    self._reverse(node)
            for name in complete.get(node, ()):
                result[name] = self._complete(name, readers[name])
        return result

    def _complete(self, name: str, readers: Sequence[Node]) -> str | None:
        graph = self._graph
        with graph.label_nodes(backward_label(readers[0]), graph.origins_of(readers[0])) if readers else nullcontext():
            return _standing_alone(graph, self.gradient(name))

    def _reverse(self, node: Node) -> None:
        graph = self._graph
        gradients = {n: self.gradient(n) for n in graph.outputs_of(node) if n is not None and n in self._path}
        grads = {name: g for name, g in gradients.items() if g is not None}
        if not grads:
            return
        wrt = {n for n in graph.inputs_of(node) if n is not None and n in self._path}
        for array, part in rules.rule_of(node)(Builder(graph), node, grads, wrt):
            self._parts.setdefault(array, []).append(part)

    def gradient(self, array: str) -> str | None:
        """The gradient of ``array``, complete once all its readers were reversed; None when nothing contributes."""
        parts, b = self._parts.pop(array, []), Builder(self._graph, "gradient")
        gradients = {view: self.gradient(view) for view in self._graph.views_of(array)}
        grads = {view: g for view, g in gradients.items() if g is not None}
        joined = joined_adjoint(b, array, grads)
        parts += [view_adjoint(b, view, g) for view, g in grads.items()] if joined is None else [joined]
        if self._graph.is_part(array) and (g := self._of_part(b, array)) is not None:
            parts.append(g)
        return total(b, parts, self._graph.dtype(array)) if parts else None

    def _of_part(self, b: Builder, name: str) -> str | None:
        """The box of the whole's gradient where the part is; all readers of the whole run after its writers."""
        whole, starts = self._graph.part(name)
        if whole not in self._wholes:
            self._wholes[whole] = self.gradient(whole)
        g = self._wholes[whole]
        ends = [s + n for s, n in zip(starts, self._graph.shape(name), strict=True)]
        return None if g is None else b.slice(g, starts, ends)


def _declare_outputs(graph: Graph, gradients: dict[str, str | None]) -> None:
    """Make ``gradients`` the only outputs of ``graph``."""
    graph.outputs, graph.replaced = [], {}
    for g in gradients.values():
        if g is not None and g not in graph.outputs:
            graph.add_output(g)


def _standing_alone(graph: Graph, name: str | None) -> str | None:
    """``name``, or a copy of it where it is a view, a part or a constant."""
    if name is not None and (graph.is_view(name) or graph.is_part(name) or name in graph.constants):
        return Builder(graph, "gradient").copy(name)
    return name


def _cut(
    joint: Graph, graph: Graph, boundary: forwarding.Boundary, incoming: list[str], storage: Storage
) -> tuple[list[str], list[str], str]:
    """Reduce the joint graph to the backward; names of the stored arrays and of the forward inputs that it reads, and
    why these are stored, where there is a budget."""
    decision = ""
    pinned = forwarding.settle(joint, boundary, storage)
    joint.inputs = incoming
    joint.prune()
    if storage.policy != "store":
        boundary = renew(joint, boundary, pinned.store)
    saved = forwarding.choose(joint, boundary, storage.policy, pinned)
    if storage.budget is not None:
        saved, decision = within_budget(joint, boundary, storage, pinned, graph.outputs, saved)
    elif storage.is_thrifty:
        saved, pinned = forwarding.making_room(joint, boundary, storage.policy, pinned, saved)
    forwarding.cut(joint, saved)
    joint.prune()
    if storage.is_late or pinned.recompute:
        joint.order = late_order(joint, boundary.nodes)
    present = set(joint.arrays())
    needed = [n for n in graph.inputs if n in present]
    joint.inputs.extend(needed)
    return saved, needed, decision


def _relocate_symbols(graph: Graph) -> None:
    """A size that was read from an input the backward does not have is read from one that it has, if there is one."""
    places: dict[str, tuple[str, int]] = {}
    for name in graph.inputs:
        for axis, extent in enumerate(graph.shape(name)):
            places.setdefault(str(extent), (name, axis))
    graph.symbols = {
        symbol: place if place[0] in graph.inputs else places.get(symbol, place)
        for symbol, place in graph.symbols.items()
    }
