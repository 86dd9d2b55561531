"""Where gradients stop: detached values and ``torch.no_grad`` regions, marked in the graph of Dynamo.

Dynamo knows of each value whether it requires a gradient. A node whose results require none reads detached operands,
which says the same to a graph that is differentiated later.
"""

from __future__ import annotations

import torch
from torch import fx

from daceopt.capture.torch.writes import unrecorded_nodes, written_nodes
from daceopt.errors import Unsupported
from daceopt.torch_internals import autograd_engine, functorch


def stop_gradients(graph: fx.GraphModule) -> None:
    """Detach the operands of nodes whose results require no gradient. Raises Unsupported where a value and a detached
    one of the same memory are both differentiated, and changed."""
    called = [n for n in graph.graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    is_differentiated = any(t.requires_grad for n in called for t in _tensors(n.meta.get("example_value")))
    undropped = [n for n in called if _is_undropped(n) and requires_grad(n) != requires_grad(n.all_input_nodes[0])]
    region = without_gradients(graph.graph, _begins_recorded(graph.graph, undropped))
    for node in undropped:
        _refuse_undropped(node, region)
    for write, operand in hidden_writes(graph.graph):
        _drop_unread(write, operand)
    for write, operand in hidden_writes(graph.graph):
        _refuse_hidden(write, operand)
    if not is_differentiated:
        return
    for node in called:
        if node in region or _stops(node):
            _detach_operands(graph.graph, node)
    graph.recompile()


def unseen_writes(graph: fx.Graph) -> set[tuple[fx.Node, fx.Node]]:
    """Calls that write into what autograd differentiates and does not know to have changed, with the operands that they
    write: where gradients are off, or through detached values. The gradient of the new value is that of the old one."""
    writes = {(node, x) for node in graph.nodes for x in unrecorded_nodes(node)}
    return writes | {(node, x) for node, x in hidden_writes(graph) if not requires_grad(x)}


def hidden_writes(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """Calls that write into memory of which there is a detached value, where a gradient is required on either side, and
    the operands that they write."""
    sides: dict[int, dict[int, bool]] = {}
    for node in graph.nodes:
        memory = storage(node)
        if memory is not None:
            needs = sides.setdefault(memory, {})
            needs[family(node)] = needs.get(family(node), False) or requires_grad(node)
    memories = {memory for memory, needs in sides.items() if len(needs) > 1 and any(needs.values())}
    return [(n, x) for n in graph.nodes for x in written_nodes(n) if storage(x) in memories]


def hidden_arguments(graph: fx.Graph) -> set[int]:
    """Positions of the arguments that require a gradient and are changed behind autograd's back. Raises Unsupported
    where one is changed as autograd knows, too."""
    unseen = unseen_writes(graph)
    hidden_storages = {storage(operand) for _, operand in unseen}
    visible = {family(operand) for n in graph.nodes for operand in written_nodes(n) if (n, operand) not in unseen}
    arguments = [n for n in graph.nodes if n.op == "placeholder"]
    written_arguments = {k: n for k, n in enumerate(arguments) if storage(n) in hidden_storages and requires_grad(n)}
    for node in written_arguments.values():
        if family(node) in visible:
            raise Unsupported(
                f"{node.name} is changed as an argument that requires a gradient, and where it is detached"
            )
    return set(written_arguments)


def family(node: fx.Node) -> int:
    """The same number for tensors that autograd knows to be views of one another."""
    value = node.meta["example_value"]
    return int(node.meta.get("family") or id(value._base if value._is_view() else value))


def _drop_unread(write: fx.Node, operand: fx.Node) -> None:
    """``mean.data.lerp_(new, 0.1)`` gives a detached value a gradient, which is lost where none but writes read it."""
    kin = [n for n in write.graph.nodes if storage(n) == storage(operand)]
    own = [n for n in kin if family(n) == family(operand)]
    if not requires_grad(operand) or kin[0] in own or any(user not in own for n in own for user in n.users):
        return
    number = family(operand)
    for node in own:
        node.meta.update(family=number, example_value=node.meta["example_value"].detach())


def _refuse_hidden(write: fx.Node, operand: fx.Node) -> None:
    """Unless one side alone is differentiated."""
    if not requires_grad(operand):
        return
    name = getattr(write.target, "__name__", write.target)
    owner = next(n for n in write.graph.nodes if storage(n) == storage(operand))
    if family(operand) != family(owner):
        raise Unsupported(f"{name} lets {operand.name}, a detached value, require a gradient; write into a clone")
    node = write
    while node.next.op != "root":
        node = node.next
        if not (node.op == "output" or written_nodes(node) or requires_grad(node)):
            continue
        for read in node.all_input_nodes:
            if requires_grad(read) and storage(read) == storage(operand) and family(read) != family(operand):
                raise Unsupported(f"{name} changes {read.name}, which is differentiated, where it is detached")


def differentiable_nodes(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes whose memory autograd knows, some part of it requiring a gradient; none where no result does."""
    called = [n for n in graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    if not any(t.requires_grad for n in called for t in _tensors(n.meta.get("example_value"))):
        return frozenset()
    storages = {storage(n) for n in graph.nodes if requires_grad(n)} - {None}
    return frozenset(n for n in graph.nodes if requires_grad(n) or storage(n) in storages)


def join_undropped(graph: fx.Graph) -> None:
    """Dropout that drops nothing gives its very argument, and Dynamo knows it as a copy: note that they are one."""
    for node in filter(_is_undropped, graph.nodes):
        memory, kin = storage(node), family(node)
        scope = storage(node.all_input_nodes[0]), family(node.all_input_nodes[0])
        for other in [n for n in graph.nodes if storage(n) == memory]:
            if family(other) == kin:
                other.meta["family"] = scope[1]
            other.meta["storage"] = scope[0]


def _is_undropped(node: fx.Node) -> bool:
    if getattr(node.target, "__name__", "") != "dropout" or storage(node) is None:
        return False
    _, p, training = (*node.args, *(0.5, True)[len(node.args) - 1 :])[:3]
    return not node.kwargs.get("training", training) or not node.kwargs.get("p", p)


def _begins_recorded(graph: fx.Graph, undropped: list[fx.Node]) -> bool:
    """Whether gradients are on where the graph begins: then what drops nothing of a value that requires one requires
    one, too, unless the value came to do so by a write."""
    first = without_gradients(graph)
    written_storages = {storage(x) for n in graph.nodes for x in written_nodes(n)}
    return all(n in first or storage(n.all_input_nodes[0]) in written_storages for n in undropped)


def _refuse_undropped(node: fx.Node, unrecorded: set[fx.Node]) -> None:
    """Whether its argument requires a gradient is not known of a copy that autograd did not see, or that one of both
    was written into."""
    if node not in unrecorded:
        raise Unsupported(f"{node.name} drops nothing of a value that is written into; write into a clone")
    if any(user not in unrecorded for user in node.users):
        raise Unsupported(f"{node.name} drops nothing of a value that requires a gradient, where gradients are off")


def _is_operand(node: fx.Node) -> bool:
    """Whether the result is the very operand, as of ``to`` that has nothing to convert: it keeps its gradient."""
    operands = [x.meta.get("example_value") for x in node.all_input_nodes]
    return not written_nodes(node) and requires_grad(node) and any(x is node.meta["example_value"] for x in operands)


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
    detachments: dict[fx.Node, fx.Node] = {}
    written_operands = written_nodes(node)

    def detach(operand: fx.Node) -> fx.Node:
        value = operand.meta.get("example_value")
        if not (isinstance(value, torch.Tensor) and (value.requires_grad or is_wrapped(value))):
            return operand
        if operand in written_operands:
            return operand
        if operand not in detachments:
            with graph.inserting_before(node):
                detachments[operand] = graph.call_method("detach", (operand,))
            detachments[operand].meta["example_value"] = value
        return detachments[operand]

    node.args = fx.map_arg(node.args, detach)
    node.kwargs = fx.map_arg(node.kwargs, detach)


def without_gradients(graph: fx.Graph, recorded: bool = True) -> set[fx.Node]:
    """What is called in ``torch.no_grad`` regions of the graph, which begins where gradients are ``recorded`` or not. A
    result may say that it requires one, which it does once something that requires one has been written into it."""
    nodes = set()
    for node in graph.nodes:
        if node.target is autograd_engine.set_grad_enabled:
            recorded = bool(node.args[0])
        elif not recorded and node.op in ("call_function", "call_method", "call_module") and not _is_operand(node):
            nodes.add(node)
    return nodes


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether this is ``torch.vmap``'s view of a tensor, which never says that it requires a gradient."""
    return bool(functorch.is_wrapped(tensor))


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []
