"""Which lists of a function nobody knows by another name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from daceopt.capture.torch import variables


def own_lists(function: ast.FunctionDef) -> frozenset[str]:
    """Variables that only have lists which the function makes, and which no other variable or attribute has: what is
    added to one of these may be added a little later, as long as the variable is not read in between."""
    nodes = variables.nodes(function.body)
    names = [n for n in nodes if isinstance(n, ast.Name)]
    uses = Counter(n.id for n in names)
    uses.subtract(n.id for node in nodes for n in _harmless(node) if isinstance(n, ast.Name))
    arguments = {a.arg for a in variables.parameters(function.args)}
    lists = {n.id for node in nodes if isinstance(node, ast.Assign) for n in _new_lists(node)}
    return frozenset(n for n in lists - arguments if uses[n] <= 0)


def _harmless(node: ast.AST) -> Sequence[ast.AST] | Iterator[ast.AST]:
    """Places in which a list may be without getting another name."""
    if isinstance(node, ast.Return):
        return ast.walk(node.value) if isinstance(node.value, ast.Name | ast.Tuple | ast.List | ast.Dict) else []
    if isinstance(node, ast.Call):
        method = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*method, *node.args, *(k.value for k in node.keywords)]
    if isinstance(node, ast.Assign):
        return _new_lists(node)
    if isinstance(node, ast.For | ast.comprehension):
        return [node.iter]
    if isinstance(node, ast.If | ast.While):
        return [node.test]
    if isinstance(node, ast.Subscript | ast.Starred):
        return [node.value]
    return [node.operand] if isinstance(node, ast.UnaryOp) else []


def _new_lists(node: ast.Assign) -> list[ast.Name]:
    """What an assignment sets to a new list each: ``a = []`` or ``a, b = [], []``."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = list(zip(target.elts, value.elts))
    else:
        pairs = [(target, value)]
    is_one = len(node.targets) == 1
    return [t for t, v in pairs if is_one and isinstance(t, ast.Name) and isinstance(v, ast.List | ast.ListComp)]
