"""Who reads and writes what: the edges of a graph, between its compute nodes and its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from daceopt.ir.graph.kinds import Node

Operand: TypeAlias = tuple[Node, str]
"""A node, and its connector."""


class DefUse:
    """Nodes and their connectors on one side, names of arrays on the other; each connector has one array.

    Nodes, the operands of each, and the readers of each array come in the order in which they were added.
    """

    def __init__(self) -> None:
        self._reads: dict[Node, dict[str, str]] = {}
        self._writes: dict[Node, dict[str, str]] = {}
        self._readers: dict[str, dict[Operand, None]] = {}
        self._writer: dict[str, Operand] = {}

    def __contains__(self, node: object) -> bool:
        return node in self._reads

    def __iter__(self) -> Iterator[Node]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)

    def reads(self, node: Node) -> Mapping[str, str]:
        """Connector -> array that ``node`` reads there."""
        return self._reads[node]

    def writes(self, node: Node) -> Mapping[str, str]:
        """Connector -> array that ``node`` writes there."""
        return self._writes[node]

    def readers(self, name: str) -> Mapping[Operand, None]:
        """The operands that are the array ``name``."""
        return self._readers.get(name, {})

    def writer(self, name: str) -> Node | None:
        """The node that writes the array ``name`` itself, where there is one."""
        operand = self._writer.get(name)
        return None if operand is None else operand[0]

    def add(self, node: Node) -> None:
        """Add a node that reads and writes nothing yet."""
        self._reads[node], self._writes[node] = {}, {}

    def read(self, node: Node, connector: str, name: str) -> None:
        """Let ``node`` read ``name`` at a connector, where it read nothing."""
        self._reads[node][connector] = name
        self._readers.setdefault(name, {})[node, connector] = None

    def write(self, node: Node, connector: str, name: str) -> None:
        """Let ``node`` write ``name``, which nothing wrote, at a connector, where it wrote nothing."""
        self._writes[node][connector] = name
        self._writer[name] = node, connector

    def drop_read(self, node: Node, connector: str) -> str:
        """Let ``node`` no longer read at a connector; returns what it read there."""
        name = self._reads[node].pop(connector)
        del self._readers[name][node, connector]
        return name

    def drop_write(self, node: Node, connector: str) -> str:
        """Let ``node`` no longer write at a connector; returns what it wrote there."""
        name = self._writes[node].pop(connector)
        del self._writer[name]
        return name

    def remove(self, node: Node) -> None:
        """Remove a node with its edges."""
        for connector in list(self._reads[node]):
            self.drop_read(node, connector)
        for connector in list(self._writes[node]):
            self.drop_write(node, connector)
        del self._reads[node], self._writes[node]

    def over(self, twins: Mapping[Node, Node]) -> DefUse:
        """The same edges between the same arrays and other nodes."""
        new = DefUse()
        new._reads = {twins[node]: dict(read) for node, read in self._reads.items()}
        new._writes = {twins[node]: dict(written) for node, written in self._writes.items()}
        new._readers = {a: {(twins[n], c): None for n, c in readers} for a, readers in self._readers.items()}
        new._writer = {a: (twins[n], c) for a, (n, c) in self._writer.items()}
        return new
