"""The second half of PyTorch's ONNX exporter: an exported program becomes an ONNX model.

``torch.onnx.export`` traces the program once more to decompose what has no translation. Where everything has one, that
changes nothing and costs as much as all the rest, so it is left out.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import onnx_ir as ir
from torch.export import ExportedProgram
from torch.fx import Node
from torch.onnx._internal._lazy_import import onnxscript_apis
from torch.onnx._internal.exporter import _core, _decomp, _fx_passes, _registration

from daceopt.capture.translations import OPSET, table


def export(program: ExportedProgram) -> ir.Model:
    """The ONNX model of ``program``, by the exporter's translations and ours; nothing in it is simplified yet."""
    registry, translated = _registry()
    module = _fx_passes.remove_assertion_nodes(program.graph_module)
    module.graph.eliminate_dead_code()
    if all(n.target in translated or n.target is operator.getitem for n in module.graph.nodes if _computes(n)):
        _fx_passes.insert_type_promotion_nodes(module)
    else:
        program = _core._prepare_exported_program_for_export(program, registry=registry)
    model = _core._exported_program_to_onnx_program(program, registry=registry).model
    return onnxscript_apis.convert_version(model, OPSET)


def _computes(node: Node) -> bool:
    return node.op not in ("placeholder", "output")


@cache
def _registry() -> tuple[Any, frozenset[Any]]:
    """The translations, and what they translate."""
    registry = _registration.ONNXRegistry.from_torchlib(opset_version=OPSET)
    for target, translation in table().items():
        registry.register_op(target, translation, is_complex=False)
    return registry, frozenset(_decomp.get_onnx_implemented_overloads(registry))
