"""An exported program without mutation: functionalised by PyTorch, which traces it again, unless it has none."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

_ATEN = torch.ops.aten
# Position of the argument that says: training. Statistics change then, and dropout gets its mask.
_BY_MODE = {_ATEN.batch_norm.default: 5, _ATEN.instance_norm.default: 5, _ATEN.dropout.default: 2}
_PLAIN = {"_operator", "math", "builtins"}  # arithmetic on sizes


def functional(program: ExportedProgram) -> ExportedProgram:
    """``program`` as a graph of operators none of which changes its arguments; none is decomposed further."""
    if all(map(_changes_nothing, program.graph.nodes)):
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
        return program
    return program.run_decompositions({})


def _changes_nothing(node: Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    if node.op != "call_function":
        return False  # attributes and submodules, which functionalisation lifts or inlines
    target: Any = node.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", None) in _PLAIN  # not an operator of higher order
    flag = _BY_MODE.get(target)
    return not target._schema.is_mutable and (flag is None or node.args[flag] is False)
