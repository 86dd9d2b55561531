"""Where gradients stop: detached values and ``torch.no_grad`` regions, marked in the graph of Dynamo.

Dynamo knows of each value whether it requires a gradient. A node whose results require none reads detached operands,
which says the same to a graph that is differentiated later.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from daceopt.errors import Unsupported

_AUGMENTED = frozenset(
    "iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor setitem".split()
)
_NO_WRITES = ("detach_", "requires_grad_")


def stop_gradients(graph: fx.GraphModule) -> None:
    """Detach the operands of nodes whose results require no gradient. Raises Unsupported where autograd does not see
    that a value is changed which it differentiates: the gradient is not that of the new value."""
    called = [n for n in graph.graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    unrecorded = without_gradients(graph.graph)
    for node in unrecorded:
        if is_in_place(node) and node.all_input_nodes:
            _refuse_unrecorded(node, node.all_input_nodes[0])
    for node in filter(_is_undropped, called):
        _refuse_undropped(node, unrecorded)
    for write in hidden_writes(graph.graph):
        _refuse_hidden(write)
    if not any(t.requires_grad for n in called for t in _tensors(n.meta.get("example_value"))):
        return  # no result is differentiated
    for node in called:
        if node in unrecorded or _stops(node):
            _detach_operands(graph.graph, node)
    graph.recompile()


def hidden_writes(graph: fx.Graph) -> list[fx.Node]:
    """What writes into memory of which there is a detached value, where a gradient is required on either side."""
    sides: dict[int, dict[int, bool]] = {}
    for node in graph.nodes:
        memory = storage(node)
        if memory is not None:
            known = sides.setdefault(memory, {})
            known[family(node)] = known.get(family(node), False) or requires_grad(node)
    divided = {memory for memory, known in sides.items() if len(known) > 1 and any(known.values())}
    return [n for n in graph.nodes if writes(n) and storage(n.all_input_nodes[0]) in divided]


def writes(node: fx.Node) -> bool:
    """Whether a call of Dynamo's graph changes the numbers of its first operand."""
    return is_in_place(node) and bool(node.all_input_nodes) and node.target not in _NO_WRITES


def family(node: fx.Node) -> int:
    """The same number for tensors that autograd knows to be views of one another."""
    value = node.meta["example_value"]
    return int(node.meta.get("family") or id(value._base if value._is_view() else value))


def _refuse_hidden(write: fx.Node) -> None:
    """Unless what is detached stays so, and nothing differentiates the new value on the other side."""
    operand = write.all_input_nodes[0]
    owner = next(n for n in write.graph.nodes if storage(n) == storage(operand))
    if requires_grad(operand) and family(operand) != family(owner):
        raise Unsupported(
            f"{write.target} lets {operand.name}, a detached value, require a gradient; write into a clone"
        )
    node = write
    while node.next.op != "root":
        node = node.next
        if not (node.op == "output" or is_in_place(node) or requires_grad(node)):
            continue
        for read in node.all_input_nodes:
            if requires_grad(read) and storage(read) == storage(operand) and family(read) != family(operand):
                raise Unsupported(f"{write.target} changes {read.name}, which is differentiated, where it is detached")


def differentiated(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes whose memory autograd knows, some part of it requiring a gradient; none where no result does."""
    called = [n for n in graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    if not any(t.requires_grad for n in called for t in _tensors(n.meta.get("example_value"))):
        return frozenset()
    known = {storage(n) for n in graph.nodes if requires_grad(n)} - {None}
    return frozenset(n for n in graph.nodes if requires_grad(n) or storage(n) in known)


def join_undropped(graph: fx.Graph) -> None:
    """Dropout that drops nothing gives its very argument, and Dynamo knows it as a copy: note that they are one."""
    for node in filter(_is_undropped, graph.nodes):
        memory, kin = storage(node), family(node)
        kept = storage(node.all_input_nodes[0]), family(node.all_input_nodes[0])
        for other in [n for n in graph.nodes if storage(n) == memory]:
            if family(other) == kin:
                other.meta["family"] = kept[1]
            other.meta["storage"] = kept[0]


def _is_undropped(node: fx.Node) -> bool:
    if getattr(node.target, "__name__", "") != "dropout" or storage(node) is None:
        return False
    _, p, training = (*node.args, *(0.5, True)[len(node.args) - 1 :])[:3]
    return not node.kwargs.get("training", training) or not node.kwargs.get("p", p)


def _refuse_undropped(node: fx.Node, unrecorded: set[fx.Node]) -> None:
    """Whether its argument requires a gradient is not known of a copy that autograd did not see, or that one of both
    was written into."""
    if requires_grad(node) == requires_grad(node.all_input_nodes[0]):
        return
    if node not in unrecorded:
        raise Unsupported(f"{node.name} drops nothing of a value that is written into; write into a clone")
    if any(user not in unrecorded for user in node.users):
        raise Unsupported(f"{node.name} drops nothing of a value that requires a gradient, where gradients are off")


def _is_operand(node: fx.Node) -> bool:
    """Whether the result is the very operand, as of ``to`` that has nothing to convert: it keeps its gradient."""
    operands = [x.meta.get("example_value") for x in node.all_input_nodes]
    return not is_in_place(node) and requires_grad(node) and any(x is node.meta["example_value"] for x in operands)


def requires_grad(node: fx.Node) -> bool:
    """Whether the value of a node of Dynamo's requires a gradient at the end of the graph."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def storage(node: fx.Node) -> int | None:
    """What tensors share that are views of one another."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or is_wrapped(value):
        return None
    return int(node.meta.get("storage") or value.untyped_storage()._cdata)


def _stops(node: fx.Node) -> bool:
    results = _tensors(node.meta.get("example_value"))
    if not results or any(t.requires_grad or is_wrapped(t) for t in results):
        return False
    floats = any(t.is_floating_point() or t.is_complex() for t in results)
    return floats and node.target not in ("detach", torch.detach)


def _detach_operands(graph: fx.Graph, node: fx.Node) -> None:
    known: dict[fx.Node, fx.Node] = {}

    def detached(operand: fx.Node) -> fx.Node:
        value = operand.meta.get("example_value")
        if not (isinstance(value, torch.Tensor) and (value.requires_grad or is_wrapped(value))):
            return operand
        if is_in_place(node) and operand is node.all_input_nodes[0]:
            _refuse_unrecorded(node, operand)
        if operand not in known:
            with graph.inserting_before(node):
                known[operand] = graph.call_method("detach", (operand,))
            known[operand].meta["example_value"] = value
        return known[operand]

    node.args = fx.map_arg(node.args, detached)
    node.kwargs = fx.map_arg(node.kwargs, detached)


def without_gradients(graph: fx.Graph) -> set[fx.Node]:
    """What is called in ``torch.no_grad`` regions of the graph. A result may say that it requires a gradient, which it
    does once something that requires one has been written into it."""
    recorded, found = True, set()
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            recorded = bool(node.args[0])
        elif not recorded and node.op in ("call_function", "call_method", "call_module") and not _is_operand(node):
            found.add(node)
    return found


def _refuse_unrecorded(node: fx.Node, operand: fx.Node) -> None:
    value = operand.meta.get("example_value")
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise Unsupported(f"{node.target} changes {operand.name}, which requires a gradient, where gradients are off")


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether this is ``torch.vmap``'s view of a tensor, which never says that it requires a gradient."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_in_place(node: fx.Node) -> bool:
    """Whether a call of Dynamo's graph writes into its first operand, by its name."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in _AUGMENTED or node.kwargs.get("inplace") is True:
        return True
    is_pythons = getattr(node.target, "__module__", None) == operator.and_.__module__  # whose and_, or_, not_ are words
    return name.endswith("_") and not name.endswith("__") and not is_pythons


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []
