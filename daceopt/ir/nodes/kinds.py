"""The compute nodes that stand at the top level of a graph."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from dace.sdfg.nodes import LibraryNode, MapEntry, Tasklet

Node: TypeAlias = MapEntry | LibraryNode | Tasklet  # a kernel by its entry; operators and regions are library nodes


class OperatorNode(Protocol):
    """An ONNX operator that is not lowered yet: what ``ops.operator.Operator`` is to the rooms below it.

    ``attributes``: by name, defaults included. Connectors are by position, those of absent operands too.
    """

    op_type: str
    domain: str
    label: str
    since_version: int
    attributes: dict[str, Any]
    input_connectors: list[str]
    output_connectors: list[str]

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or ``default`` where there is none."""

    @classmethod
    def version_in(cls, opset: int | None) -> int:
        """``since_version`` of a new node of an opset (None: the newest)."""


def is_operator(node: object) -> bool:
    """Is ``node`` an operator that is not lowered yet?"""
    return hasattr(node, "op_type")
