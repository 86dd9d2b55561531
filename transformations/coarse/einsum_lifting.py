"""Matrix products from Einsum, where that copies nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.families.einsum import parse
from daceopt.passes.patterns import Match, Op, PatternRule, op


@dataclass(frozen=True)
class _Product:
    """The labels of a product of two operands: shared and kept, of the left alone, of the right alone, summed."""

    left: str
    right: str
    result: str
    batch: str
    rows: str
    columns: str
    inner: str

    @classmethod
    def of(cls, graph: Graph, node: Node) -> _Product | str:
        """The product, or why there is none."""
        arrays = graph.operands(node, 2)
        (left, right), result = parse(node.attribute("equation"), [len(graph.shape(a)) for a in arrays])
        extents = list(zip(left + right, [n for a in arrays for n in graph.shape(a)], strict=True))
        if len({c for c, _ in extents}) != len(set(extents)) or any(len(set(t)) != len(t) for t in (left, right)):
            return "a label stands for two extents, or twice in an operand"
        alone = [c for c in left + right if (c in left) != (c in right)]
        if any(c not in result for c in alone):
            return "an operand is summed on its own before the product"
        shared = [c for c in left if c in right]
        batch = "".join(c for c in result if c in shared)
        inner = "".join(c for c in left if c in shared and c not in result)
        rows, columns = ("".join(c for c in t if c in alone) for t in (left, right))
        return cls(left, right, result, batch, rows, columns, inner)

    def copied_operand(self) -> str | None:
        """The operand, or result, that no view shows as a matrix: labels of a group are not together in order."""
        for term, groups in (
            (self.left, (self.rows, self.inner)),
            (self.right, (self.inner, self.columns)),
            (self.result, (self.rows, self.columns)),
        ):
            if any(group not in term for group in groups):
                return term
        return None


@dataclass(frozen=True)
class EinsumLifting(PatternRule):
    """One MatMul over views instead of an Einsum of two operands; other steps know more of it, and so do libraries.

    before:  y = Einsum(q, k; "bihd,bjhd->bhij")
    after:   y = MatMul(Transpose(q, [0, 2, 1, 3]), Transpose(k, [0, 2, 3, 1]))

    Where a library could not read an operand as a matrix without a copy the Einsum stays, and the near miss says which.
    Rausch et al., DaCeML, section 5.1 (the check of layouts).
    """

    thing = "the contraction"
    pattern = op("Einsum", "x", "z").named("einsum")

    def why_not(self, m: Match) -> str | None:
        if not types.is_float(m.graph.dtype(m["x"])):
            return f"a contraction of {types.name_of(m.graph.dtype(m['x']))} is no product of a library"
        product = _Product.of(m.graph, m.node("einsum"))
        if isinstance(product, str):
            return product
        if not product.inner or not product.rows or not product.columns:
            return "nothing is summed, or an operand is no matrix"
        copied = product.copied_operand()
        if copied is not None:
            return f"{copied!r} of {m.node('einsum').attribute('equation')!r} would be copied to be a matrix"
        has_numbers = all(isinstance(n, int) for name in ("x", "z") for n in m.shape(name))
        merges = any(len(g) > 1 for g in (product.rows, product.columns, product.inner))
        return "sizes that are merged must be known" if merges and not has_numbers else None

    def replace(self, m: Match) -> Op | str:
        product = _Product.of(m.graph, m.node("einsum"))
        assert isinstance(product, _Product), "decided by why_not"
        p, sizes = product, dict(zip(product.left + product.right, (*m.shape("x"), *m.shape("z")), strict=True))
        left = _matrix("x", p.left, (p.batch, p.rows, p.inner), sizes)
        right = _matrix("z", p.right, (p.batch, p.inner, p.columns), sizes)
        order = p.batch + p.rows + p.columns
        whole: Op | str = op("MatMul", left, right)
        if len(p.rows) + len(p.columns) > 2:
            whole = op("Reshape", whole, _shape(sizes[c] for c in order))
        return _transpose(whole, order, p.result)


def _matrix(name: str, labels: str, groups: tuple[str, str, str], sizes: dict[str, Dim]) -> Op | str:
    """The operand as [batch..., first group, second group]."""
    batch, first, second = groups
    view = _transpose(name, labels, batch + first + second)
    if len(first) == len(second) == 1:
        return view
    merged = [sizes[c] for c in batch] + [dim(sympy.Mul(*(sizes[c] for c in g))) for g in (first, second)]
    return op("Reshape", view, _shape(merged))


def _transpose(x: Op | str, labels: str, order: str) -> Op | str:
    return x if labels == order else op("Transpose", x, perm=[labels.index(c) for c in order])


def _shape(extents: Any) -> np.ndarray:
    return np.asarray([int(n) for n in extents], np.int64)
