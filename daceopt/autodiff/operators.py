"""The gradient of operators that were kept because their family has a rule for them."""

from __future__ import annotations

from collections.abc import Collection

from daceopt.autodiff.rules import Contributions, Grads, adjoint, preparation
from daceopt.errors import Unsupported
from daceopt.ir.graph.operator import Operator
from daceopt.ir.nodes.builder import Builder
from daceopt.ops.core import registry


@preparation(Operator)
def prepare(b: Builder, node: Operator) -> None:
    """Let it write what its rule reads, as registered with ``@keeps``."""
    registry.prepare_gradient(b.graph, node)


@adjoint(Operator)
def operator_adjoint(b: Builder, node: Operator, grads: Grads, wrt: Collection[str]) -> Contributions:
    """Call the rule that was registered with ``@gradient``. Raises Unsupported when there is none."""
    if not registry.has_gradient(node):
        raise Unsupported(
            f"operator {node.op_type} ({node.label}) has no @gradient rule; lower it before differentiation"
        )
    inputs, outputs = b.graph.inputs_of(node), b.graph.outputs_of(node)
    incoming = [None if name is None else grads.get(name) for name in outputs]
    is_wanted = [name in wrt for name in inputs]
    if not any(is_wanted) or all(g is None for g in incoming):
        return []
    results = registry.gradient_rule(node)(b, node, inputs, outputs, incoming, is_wanted)
    return [
        (name, g)
        for name, g, ask in zip(inputs, results, is_wanted, strict=True)
        if name is not None and ask and g is not None
    ]
