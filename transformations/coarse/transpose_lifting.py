"""A swap of the last two dimensions that exporters write with leading dimensions merged."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.passes.patterns import Match, Op, PatternRule, op


@dataclass(frozen=True)
class TransposeLifting(PatternRule):
    """One Transpose of the whole array, which is a view, instead of a Reshape on either side.

    before:  y = Reshape(Transpose(Reshape(x, [b*h, s, d]), [0, 2, 1]), [b, h, d, s])
    after:   y = Transpose(x, [0, 1, 3, 2])
    """

    pattern = op(
        "Reshape", op("Transpose", op("Reshape", "x", ...).named("merged").shared(), perm=[0, 2, 1]).shared(), ...
    )

    def why_not(self, m: Match) -> str | None:
        shape, merged, output = m.shape("x"), m.shape("merged"), m.graph.shape(m.result)
        if len(shape) < 2 or output != (*shape[:-2], shape[-1], shape[-2]):
            return f"{m.result} of shape {output} is not {m['x']} of shape {shape} with its last dimensions swapped"
        if merged[1:] != shape[-2:]:
            return f"the first Reshape splits the last two dimensions of {shape} into {merged[1:]}"
        return None

    def replace(self, m: Match) -> Op:
        rank = len(m.shape("x"))
        return op("Transpose", "x", perm=[*range(rank - 2), rank - 1, rank - 2])
