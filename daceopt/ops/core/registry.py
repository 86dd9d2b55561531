"""Which operators there are and what is known of each: how it is lowered, differentiated, and what it supports.

A family file registers rules with the decorators below; a user's file does the same, and the last registration wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.control.region import bodies
from daceopt.ir.data.provenance import label_of
from daceopt.ir.data.sparse import dense
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import Operator as Operator
from daceopt.ir.graph.operator import make as make
from daceopt.ir.graph.operator import schema_of as schema_of
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Shape
from daceopt.ir.scalar.types import DType
from daceopt.store import identity
from daceopt.store.own_text import home

Names = list["str | None"]
Lowering = Callable[[Builder, Operator, Names, Names], None]
Gradient = Callable[[Builder, Operator, Names, Names, Names, "list[bool]"], Names]
Keeping = Callable[[Graph, Operator], "dict[int, tuple[Shape, DType]]"]
Again = Callable[[Builder, Operator, Names, Names, str], None]
Check = Callable[[Graph, Operator], "str | None"]

FLOATS = tuple(t for t in types.DTYPES if types.is_float(t))
INTEGERS = tuple(t for t in types.DTYPES if types.is_integer(t))
SIGNED = tuple(t for t in types.DTYPES if types.is_float(t) or types.to_numpy(t).kind == "i")
BOOL = tuple(t for t in types.DTYPES if types.is_bool(t))
NUMBERS = FLOATS + INTEGERS
COMPUTED = types.DTYPES
ANY = types.ALL  # for operators that move data and compute nothing

_LOWERINGS: dict[tuple[str, str], Lowering] = {}
_TYPES: dict[tuple[str, str], tuple[DType, ...]] = {}
_FACTORS: dict[tuple[str, str], bool] = {}  # whether narrow ones are taken where libraries of the target do
_CHECKS: dict[tuple[str, str], Check] = {}
_GRADIENTS: dict[tuple[str, str], tuple[Gradient, Callable[[Operator], bool]]] = {}
_KEEPING: dict[tuple[str, str], Keeping] = {}
_AGAIN: dict[tuple[str, str], Again] = {}
_WITHOUT_GRADIENT: set[tuple[str, str]] = set()


# -------------------------------------------------------------------- registration


def lowering(
    *op_types: str, types: Iterable[DType] = COMPUTED, factors: bool = False, domain: str = ""
) -> Callable[[Lowering], Lowering]:
    """Register the native expansion of operators; ``types`` are the element types that its first input may have.

    Narrow types (half, 8 bits and less) that ``types`` does not list are widened around the operator at import.
    ``factors``: but for the half types that the libraries of the graph's target multiply, of which it makes products.

    The rule ``(builder, node, inputs, outputs)`` runs after the node was taken out of the graph and writes every
    output that is not None.
    """

    def register(rule: Lowering) -> Lowering:
        for op_type in op_types:
            _LOWERINGS[domain, op_type] = rule
            _TYPES[domain, op_type] = tuple(types)
            _FACTORS[domain, op_type] = factors
        return rule

    return register


def elementwise(op_type: str, fn: Callable[..., sympy.Expr], types: Iterable[DType] = FLOATS, domain: str = "") -> None:
    """Register a point-wise operator: ``fn`` maps one scalar expression per input to the output's."""

    def rule(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
        b.elementwise(fn, *present(inputs), out=outputs[0], label=node.op_type.lower())

    lowering(op_type, types=types, domain=domain)(rule)


def gradient(
    *op_types: str, when: Callable[[Operator], bool] = lambda node: True, domain: str = ""
) -> Callable[[Gradient], Gradient]:
    """Register a reverse-mode rule, used instead of differentiating the lowering of nodes for which ``when`` holds.

    The rule ``(builder, node, inputs, outputs, grads_out, needs_grad)`` adds to the graph and returns one array (None
    is 0) per input; forward arrays are there under their own names. Library nodes are registered by class name.
    """

    def register(rule: Gradient) -> Gradient:
        for op_type in op_types:
            _GRADIENTS[domain, op_type] = (rule, when)
        return rule

    return register


def keeps(*op_types: str, domain: str = "") -> Callable[[Keeping], Keeping]:
    """Register what a node leaves in memory for its gradient rule: ``(graph, node)`` gives shape and element type of
    optional outputs by position. Those that a node has not get them before it is differentiated; small ones are worth
    it, because the rule would compute them again from all that the node reads.
    """

    def register(rule: Keeping) -> Keeping:
        for op_type in op_types:
            _KEEPING[domain, op_type] = rule
        return rule

    return register


def again(*op_types: str, domain: str = "") -> Callable[[Again], Again]:
    """Register how a backward computes a node's first output from its inputs and from what ``keeps`` says, element by
    element: ``(builder, node, inputs, outputs, out)`` writes ``out``.
    """

    def register(rule: Again) -> Again:
        for op_type in op_types:
            _AGAIN[domain, op_type] = rule
        return rule

    return register


def without_gradient(*op_types: str, domain: str = "") -> None:
    """Say that operators over floats have no gradient: for the table; differentiating them is refused by itself."""
    _WITHOUT_GRADIENT.update((_domain(domain), op_type) for op_type in op_types)


def supports(*op_types: str, domain: str = "") -> Callable[[Check], Check]:
    """Register a check ``(graph, node) -> reason or None`` that runs at import, before anything is lowered."""

    def register(check: Check) -> Check:
        for op_type in op_types:
            _CHECKS[domain, op_type] = check
        return check

    return register


class Bodies(Protocol):
    """What stands in for a lowering where an operator has none: its schema's function body."""

    def exists(self, op_type: str, domain: str, version: int | None) -> bool:
        """Is there a body that consists of supported operators?"""

    def why_unsupported(self, graph: Graph, node: Operator) -> str | None:
        """The reason for which the body of this node cannot take its place."""

    def lower(self, b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
        """Put the body in the place of a node that was taken out of the graph."""


_BODIES: list[Bodies] = []


def provide_bodies(bodies: Bodies) -> None:
    """Say how function bodies are found: they consist of operators, so that they are above this table of them."""
    _BODIES[:] = [bodies]


def _bodies() -> Bodies:
    return _BODIES[0]


def present(names: Names) -> list[str]:
    return [n for n in names if n is not None]


_Entries = dict["tuple[str, str, str]", Any]
_OWN: _Entries = {}


def seal() -> None:
    """Everything registered so far is daceopt's own; what comes later decides what is compiled, see below."""
    _OWN.update(_entries())


def foreign_source() -> str:
    """What stands for every rule that is not daceopt's own: its text, and the values that it reads; "" for none.

    An own rule over a user's function, as ``elementwise`` makes one, is the user's.
    """
    later = {k: rule for k, rule in _entries().items() if k not in _OWN or rule != _OWN[k]}
    users = {k: rule for k, rule in later.items() if not _is_front_ends(rule)}
    return "\n".join(f"{key}: {identity.text_of(rule)}" for key, rule in users.items())


def _entries() -> _Entries:
    tables: dict[str, Mapping[tuple[str, str], Any]] = {
        "lowering": {k: (rule, _FACTORS[k], *map(_name_of, _TYPES[k])) for k, rule in _LOWERINGS.items()},
        "check": _CHECKS,
        "gradient": _GRADIENTS,
        "keeping": _KEEPING,
        "again": _AGAIN,
    }
    return {(table, *key): rule for table, rules in tables.items() for key, rule in rules.items()}


def _is_front_ends(entry: object) -> bool:
    """A front end registers rules for nodes of its own as it meets them: plain functions that take nothing along."""
    rule = entry[0] if isinstance(entry, tuple) else entry
    module = home(rule) or ""
    own = identity.is_own(module) and not module.startswith("daceopt.ops.")
    return own and not getattr(rule, "__closure__", None)


def _name_of(dtype: DType) -> str:
    return types.name_of(dtype)


# -------------------------------------------------------------------- questions


def has_lowering(op_type: str, domain: str = "") -> bool:
    """Is there a lowering of its own, not only a function body?"""
    return (_domain(domain), op_type) in _LOWERINGS


def lowered_operators() -> list[tuple[str, str]]:
    """(domain, operator) of all lowerings."""
    return list(_LOWERINGS)


def how_differentiated(op_type: str, domain: str = "") -> str:
    """``rule``, ``derived`` from the lowering, or "" where there is no gradient."""
    key = (_domain(domain), op_type)
    if key in _GRADIENTS:
        return "rule"
    return "derived" if is_supported(op_type, domain) and key not in _WITHOUT_GRADIENT else ""


def accepted_types(op_type: str, domain: str = "", factors: Iterable[DType] = ()) -> tuple[DType, ...]:
    """Element types of an operator's own lowering; for others all that compute. ``factors``: the narrow types that
    products may have."""
    key = (_domain(domain), op_type)
    return (*_TYPES.get(key, COMPUTED), *(factors if _FACTORS.get(key) else ()))


def is_supported(op_type: str, domain: str = "") -> bool:
    """Is there a native lowering, or a function body that consists of operators?"""
    if (_domain(domain), op_type) in _LOWERINGS:
        return True
    return _bodies().exists(op_type, _domain(domain), None)


def why_unsupported(graph: Graph, node: Operator) -> str | None:
    """None when ``lower`` will work; else what was found and what is supported. ``node`` is in ``graph``."""
    key = (node.domain, node.op_type)
    if key not in _LOWERINGS:
        return _why_no_body(graph, node)
    reason = _wrong_type(graph, node, key) or _too_large(node) or _negative(graph, node)
    if reason is None and key in _CHECKS:
        reason = _CHECKS[key](graph, node)
    return reason


def _why_no_body(graph: Graph, node: Operator) -> str | None:
    if not _bodies().exists(node.op_type, node.domain, node.since_version or None):
        return f"{_title(node)} has no native lowering"
    return _bodies().why_unsupported(graph, node)


def _wrong_type(graph: Graph, node: Operator, key: tuple[str, str]) -> str | None:
    operands = present(graph.inputs_of(node)) or present(graph.outputs_of(node))
    accepted = accepted_types(key[1], key[0], types.HALVES)  # those that no library multiplies are widened
    if not operands or graph.dtype(operands[0]) in accepted:
        return None
    names = ", ".join(types.name_of(t) for t in accepted)
    return f"{_title(node)} over {types.name_of(graph.dtype(operands[0]))}; supported are {names}"


def _too_large(node: Operator) -> str | None:
    """The standard's own shape inference cuts such numbers off, so that its shapes mean another operator."""
    flags = {k: v for k, v in node.attributes.items() if isinstance(v, int) and k not in _WIDE and not node.domain}
    name = next((k for k, v in flags.items() if not -(2**31) <= v < 2**31), None)
    return f"attribute {name} of {_title(node)} is {node.attributes[name]}; expected 32 bits" if name else None


def _negative(graph: Graph, node: Operator) -> str | None:
    """Sizes that make no sense go through the standard's inference as they are."""
    shapes = [graph.shape(n) for n in graph.outputs_of(node) if n is not None]
    wrong = next((s for s in shapes if any(isinstance(e, int) and e < 0 for e in s)), None)
    return f"{_title(node)} with a result of shape {wrong}" if wrong else None


_WIDE = frozenset(["ignore_index", "value_int"])


def _title(node: Operator) -> str:
    return f"{node.domain or 'onnx'}.{node.op_type}"


def has_gradient(node: Operator) -> bool:
    """Is there a gradient rule for this operator or library node (or for the operator type named)?"""
    if isinstance(node, str):
        return ("", node) in _GRADIENTS
    entry = _GRADIENTS.get(_key(node))
    return entry is not None and entry[1](node)


def gradient_rule(node: Operator) -> Gradient:
    """The rule of a node for which :func:`has_gradient` holds; KeyError otherwise."""
    return _GRADIENTS[_key(node)][0]


def prepare_gradient(graph: Graph, node: Operator) -> None:
    """Let a node that is about to be differentiated write what its rule reads."""
    rule = _KEEPING.get(_key(node))
    if rule is None or not has_gradient(node):
        return
    there = graph.outputs_of(node)
    for position, (shape, dtype) in rule(graph, node).items():
        if position >= len(there) or there[position] is None:
            graph.write(node, node.output_connector(position), graph.add_array(node.op_type.lower(), shape, dtype))


def again_rule(graph: Graph, node: Operator) -> Again | None:
    """How the first output of a node is computed again; None unless it leaves all that it could, as ``keeps`` says."""
    rule, there = _AGAIN.get(_key(node)), graph.outputs_of(node)
    if rule is None or there[0] is None or not has_gradient(node):
        return None
    for position, (_, dtype) in _KEEPING[_key(node)](graph, node).items():
        name = there[position] if position < len(there) else None
        if name is None or graph.dtype(name) != dtype:
            return None
    return rule


def _key(node: Operator) -> tuple[str, str]:
    return (node.domain, node.op_type) if isinstance(node, Operator) else ("", type(node).__name__)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


# -------------------------------------------------------------------- lowering


def lower(graph: Graph, node: Operator) -> None:
    """Replace ``node`` by maps, views, library nodes or other operators. Raises Unsupported before any change."""
    reason = why_unsupported(graph, node)
    if reason is not None:
        raise Unsupported(f"cannot lower {_title(node)}: {reason}")
    expand(graph, node)


def expand(graph: Graph, node: Operator) -> None:
    """:func:`lower` without asking first: where a rule raises Unsupported, the graph is left half done."""
    rule = _LOWERINGS.get((node.domain, node.op_type))
    if rule is None:
        rule = _bodies().lower
    inputs, outputs = graph.inputs_of(node), graph.outputs_of(node)
    origins = graph.origins_of(node)
    graph.remove(node)
    with graph.label_nodes(label_of(node), origins):
        rule(Builder(graph), node, inputs, outputs)


def lower_all(graph: Graph, keep: Callable[[Operator], bool] = lambda node: False) -> int:
    """Lower every operator for which ``keep`` is false until none is left; returns how many were lowered.

    Consumers go first, so that a lowering can still see how its shape operands are computed; bodies of regions last.
    """
    count = 0
    while True:
        waiting = [n for n in graph.operators() if isinstance(n, Operator) and not keep(n)]
        if not waiting:
            return count + sum(lower_all(body, keep) for body in bodies(graph))
        for node in reversed(waiting):
            lower(graph, node)
            count += 1


def constant_value(attributes: dict[str, Any]) -> Any:
    """The numpy array of a ``Constant`` operator's attributes. Raises Unsupported for strings."""
    import numpy as np
    from onnx import numpy_helper

    for name, dtype in (
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_float", np.float32),
        ("value_floats", np.float32),
    ):
        if name in attributes:
            return np.asarray(attributes[name], dtype)
    if "sparse_value" in attributes:
        return dense(attributes["sparse_value"])
    value = attributes.get("value")
    if value is None:
        raise Unsupported(f"Constant with {sorted(attributes)}: expected a tensor, ints or floats")
    return value if isinstance(value, np.ndarray) else numpy_helper.to_array(value)
