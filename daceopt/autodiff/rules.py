"""The table of gradient rules: one function per node class, found by the class's ancestry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from daceopt.errors import Unsupported
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.builder import Builder
from daceopt.store import identity
from daceopt.store.own_text import home

Grads = Mapping[str, str]
Contributions = list[tuple[str, str]]
Rule = Callable[[Builder, Node, Grads, Collection[str]], Contributions]
Preparation = Callable[[Builder, Node], None]

_RULES: dict[type, Rule] = {}
_PREPARATIONS: dict[type, Preparation] = {}
_BUILT_IN = ("kernels", "extremes", "contraction", "convolution", "pooling", "operators", "repetition", "choice")


def adjoint(node_class: type) -> Callable[[Rule], Rule]:
    """Register the rule of a node class.

    ``rule(b, node, grads, wrt)``: ``grads`` maps arrays that the node writes to arrays holding their gradients
    (those that have one); ``wrt`` names the arrays it reads whose gradient is needed. The rule builds the
    gradient computation with ``b`` (the graph holds the forward computation too) and returns pairs (array read, array
    with one contribution to its gradient).
    """

    def register(rule: Rule) -> Rule:
        _RULES[node_class] = rule
        return rule

    return register


def preparation(node_class: type) -> Callable[[Preparation], Preparation]:
    """Register what must change on a node of the forward graph so that its rule has all it reads (an extra output,
    say).
    """

    def register(rule: Preparation) -> Preparation:
        _PREPARATIONS[node_class] = rule
        return rule

    return register


def foreign_source() -> str:
    """What stands for the rules that users registered; "" for none."""
    tables: dict[str, dict[type, Any]] = {"adjoint": _RULES, "preparation": _PREPARATIONS}
    users = [(n, c, r) for n, table in tables.items() for c, r in table.items() if not identity.is_own(home(r))]
    return identity.text_of(users) if users else ""


def rule_of(node: Node) -> Rule:
    """The rule for ``node``. Raises Unsupported when its class and ancestors have none."""
    rule = _lookup(_RULES, node)
    if rule is None:
        raise Unsupported(
            f"{type(node).__name__} {getattr(node, 'label', node)!r} has no gradient rule; expected one of "
            f"{sorted(c.__name__ for c in _RULES)}: register one with "
            "daceopt.autodiff.adjoint, or train this part in eager mode"
        )
    return rule


def prepare(b: Builder, node: Node) -> None:
    """Change the forward ``node`` where its rule asks for that."""
    change = _lookup(_PREPARATIONS, node)
    if change is not None:
        change(b, node)


def _lookup(table: dict[type, Any], node: Node) -> Any:
    for module in _BUILT_IN:
        import_module(f"daceopt.autodiff.{module}")
    return next((table[c] for c in type(node).__mro__ if c in table), None)
