"""``to_onnx`` writes a trace's functional graph as one checked ONNX model whose inputs and outputs are those of the
trace.
"""

from __future__ import annotations

import copy

import onnx
import onnx_ir as ir
import onnxscript.optimizer
import torch
import torch.utils._pytree as pytree
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind, OutputSpec

from daceopt.capture.attention_layout import fix_attention_layout
from daceopt.capture.exporter import export
from daceopt.capture.grid_index import view_instead_of_grid_index
from daceopt.capture.quiet import quiet
from daceopt.capture.static_sizes import use_static_sizes
from daceopt.capture.synonyms import use_known_names
from daceopt.capture.trace import Trace
from daceopt.capture.translations import DOMAIN, stop_gradient_function
from daceopt.errors import CaptureError

_FOLD_LIMIT = 1 << 16  # elements; larger results are left to the recipes, which know what they cost


def to_onnx(trace: Trace) -> onnx.ModelProto:
    """ONNX model of ``trace``: input i is ``trace.inputs[i]``, output i is ``trace.graph_outputs[i]``; names are
    unique.

    Parameters and buffers are graph inputs (no weights in the model); lifted constants too. Every value has a type;
    symbolic dimensions keep the names of ``trace.symbols``. Gradients stop at ``daceopt::StopGradient``, a
    model-local function.

    Raises ``CaptureError`` naming the operator that has no ONNX form.
    """
    try:
        with quiet():
            model = _tidy(export(_all_explicit(trace)), trace)
            return _checked(_with_functions(ir.to_proto(model)))
    except CaptureError:
        raise
    except Exception as error:  # the exporter raises many kinds
        raise CaptureError(f"the traced graph has no ONNX form: {_reason(error)}") from error


def _all_explicit(trace: Trace) -> ExportedProgram:
    """The program with parameters, buffers, constants and mutated buffers as plain inputs and outputs."""
    program = trace.program
    module = copy.deepcopy(program.graph_module)
    view_instead_of_grid_index(module)
    fix_attention_layout(module)
    use_static_sizes(module)
    use_known_names(module)
    _keep_computed_outputs(module, trace)
    signature = program.graph_signature
    kept = [spec for spec, out in zip(signature.output_specs, trace.outputs, strict=False) if _computed(out.kind)]
    inputs = [InputSpec(InputKind.USER_INPUT, spec.arg, None) for spec in signature.input_specs]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) for spec in kept]
    in_tree = pytree.tree_structure((tuple(range(len(inputs))), {}))
    call = ModuleCallSignature([], [], in_tree, pytree.tree_structure(tuple(range(len(outputs)))))
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict={},
        range_constraints=program.range_constraints,
        module_call_graph=[ModuleCallEntry("", call)],
        constants={},
        verifiers=program.verifiers,
    )


def _computed(kind: str) -> bool:
    return kind in ("buffer_mutation", "user")


def _keep_computed_outputs(module: torch.fx.GraphModule, trace: Trace) -> None:
    """Inputs that are returned, and values returned twice, are filled in by the caller: ONNX outputs are distinct and
    computed.
    """
    node = module.graph.output_node()
    results = node.args[0]
    assert isinstance(results, tuple | list)
    node.args = (tuple(r for r, out in zip(results, trace.outputs, strict=False) if _computed(out.kind)),)
    module.recompile()


def _tidy(model: ir.Model, trace: Trace) -> ir.Model:
    """Fold what is constant, drop what nobody reads, and give inputs and outputs names of their own."""
    for i, value in enumerate(model.graph.inputs):
        value.name = f"in_{i}"
    for i, value in enumerate(model.graph.outputs):
        value.name = f"out_{i}"
    onnxscript.optimizer.fold_constants(model, input_size_limit=_FOLD_LIMIT, output_size_limit=_FOLD_LIMIT)
    RemoveUnusedNodesPass()(model)
    for i, (value, spec) in enumerate(zip(model.graph.inputs, trace.inputs, strict=True)):
        value.name = f"{spec.kind}_{i}"
    for i, (value, result) in enumerate(zip(model.graph.outputs, trace.graph_outputs, strict=True)):
        value.name = f"{result.kind}_out_{i}"
    model.graph.name = "trace"
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
    return model


def _with_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Define ``StopGradient`` in the model, so that any ONNX tool can run it."""
    if any(node.domain == DOMAIN for node in model.graph.node):
        model.functions.append(stop_gradient_function())
    return model


def _checked(model: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(model)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    typed = {v.name for v in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    typed |= {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        missing = [name for name in node.output if name and name not in typed]
        if missing:
            raise CaptureError(f"ONNX shape inference gives no type for {missing[0]!r}, a result of {node.op_type}")
    return model


def _reason(error: BaseException) -> str:
    """The innermost cause: the exporter wraps the operator's name in several layers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')}"
