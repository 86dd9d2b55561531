"""An Einsum with the transposition or the Einsum that it reads, or that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_letters

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ops.families.einsum import parse
from daceopt.passes.patterns import Match, Op, PatternRule, either, op

_MAKER = either(op("Transpose", ...).named("inner").shared(), op("Einsum", ...).named("inner"))


@dataclass(frozen=True)
class VerticalEinsumFusion(PatternRule):
    """One Einsum for a chain of them: labels say what transpositions did.

    before:  t = Transpose(a, [1, 0]);  y = Einsum(t, b; "ki,kj->ij")
    after:   y = Einsum(a, b; "ik,kj->ij")

    With ``products`` an Einsum of several operands joins as well, as the first operand of the one that reads it:
    operands are multiplied from the left, so that nothing is added in another order. Rausch et al., DaCeML, section 5.1
    and appendix C.1.
    """

    products: bool = False

    thing = "the chain"
    pattern = either(
        op("Transpose", op("Einsum", ...).named("inner")).named("outer"),
        op("Einsum", _MAKER, ...).named("outer"),
        op("Einsum", "before", _MAKER, ...).named("outer"),
    )

    def why_not(self, m: Match) -> str | None:
        joined = _join(m)
        if isinstance(joined, str) or self.products:
            return joined if isinstance(joined, str) else None
        several = sum(n is not None for n in m.graph.inputs_of(m.node("inner"))) > 1
        apart = several and m.node("outer").op_type == "Einsum"
        return "it reads a product: with products=True both become one" if apart else None

    def replace(self, m: Match) -> Op:
        joined = _join(m)
        assert not isinstance(joined, str), "decided by why_not"
        arrays, equation = joined
        return op("Einsum", *arrays, equation=equation)


def _join(m: Match) -> tuple[list[str], str] | str:
    """Operands and equation of both as one, or why they cannot be one."""
    graph, place = m.graph, int("before" in m)
    (own, terms, result), (arrays, inner_terms, shown) = (_equation(graph, m.node(n)) for n in ("outer", "inner"))
    if graph.inputs_of(m.node("outer")).count(own[place]) > 1:
        return f"{own[place]} is read twice"
    if any(len(set(t)) != len(t) for t in (*terms, *inner_terms, shown)):
        return "a diagonal is taken"
    if place and len(arrays) > 1:
        return "a product that is not the first operand would be multiplied in another order"
    labels = dict(zip(shown, terms[place], strict=True))
    used = {*"".join(terms), *result}
    spare = iter(c for c in ascii_letters if c not in used)
    for c in dict.fromkeys("".join(inner_terms)):
        labels.setdefault(c, next(spare))
    inner = ["".join(labels[c] for c in t) for t in inner_terms]
    whole = [*terms[:place], *inner, *terms[place + 1 :]]
    return [*own[:place], *arrays, *own[place + 1 :]], f"{','.join(whole)}->{result}"


def _equation(graph: Graph, node: Node) -> tuple[list[str], list[str], str]:
    """Operands, their labels and those of the result."""
    arrays = [n for n in graph.inputs_of(node) if n is not None]
    ranks = [len(graph.shape(a)) for a in arrays]
    if node.op_type == "Transpose":
        labels = ascii_letters[: ranks[0]]
        perm = node.attribute("perm") or range(ranks[0])[::-1]
        return arrays, [labels], "".join(labels[p] for p in perm)
    return (arrays, *parse(node.attribute("equation"), ranks))
