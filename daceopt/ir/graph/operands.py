"""Operands of a node by position: one that is absent is None, and asking for its name is an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from daceopt.errors import Unsupported
from daceopt.ir.graph.kinds import Node


class Operands(list["str | None"]):
    """Array names by position, None where absent: the ``kind`` ("input", "output") of operands of ``node``."""

    def __init__(self, names: Iterable[str | None], node: Node, kind: str):
        super().__init__(names)
        self.node, self.kind = node, kind

    @property
    def owner(self) -> str:
        """Whose they are, as messages say it."""
        node = self.node
        return f"{self.kind}s of {getattr(node, 'op_type', '') or type(node).__name__} {getattr(node, 'label', '')!r}"


def require(names: Sequence[str | None], position: int) -> str:
    """The operand at ``position``. Raises ``Unsupported``, with the node, where it is absent."""
    name = names[position] if -len(names) <= position < len(names) else None
    if name is None:
        owner = getattr(names, "owner", "a node")
        listed = ["absent" if n is None else n for n in names]
        raise Unsupported(f"operand {position} of {owner} is absent, but it is needed here; given are {listed}")
    return name


def all_required(names: Sequence[str | None], count: int | None = None) -> list[str]:
    """The first ``count`` operands, or all of them; raises as :func:`require` does."""
    return [require(names, k) for k in range(len(names) if count is None else count)]
