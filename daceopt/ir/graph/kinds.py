"""The compute nodes that are at the top level of a graph."""

from __future__ import annotations

from typing import TypeAlias, TypeGuard

from dace.sdfg.nodes import LibraryNode, Tasklet

from daceopt.ir.graph.operator import Operator

Node: TypeAlias = LibraryNode | Tasklet  # kernels, operators and regions are library nodes


def is_operator(node: object) -> TypeGuard[Operator]:
    """Is ``node`` an operator that is not lowered yet?"""
    return isinstance(node, Operator)
