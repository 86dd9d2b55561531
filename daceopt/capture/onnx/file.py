"""``load`` reads an ONNX model from an untrusted source: every defect becomes a ``ModelFileError`` that says what,
where and what to do.
"""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import TypeAlias

import ml_dtypes  # noqa: F401  numpy learns bfloat16 and the 8-bit floats
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

import daceopt.capture.onnx.contributed_quantized
import daceopt.capture.onnx.contributed_transformers  # noqa: F401  (as the one above: registers its rules)
from daceopt.capture.onnx.contributed import expand
from daceopt.capture.onnx.declared import open_meaningless, warn_of_results, without_results
from daceopt.capture.onnx.external_data import load_external
from daceopt.capture.onnx.limits import check_declared_sizes, check_functions, check_messages
from daceopt.capture.onnx.spelled import lower_ceiling, spell_out, with_stand_ins
from daceopt.capture.onnx.weights import WithoutWeights
from daceopt.errors import ModelFileError
from daceopt.ir.data.sparse import dense

_OLDEST_IR = 3
_OLDEST_OPSET = 7  # older models are converted to this one
_SIGNED_AXES = 11
_ASSUMED_OPSET = 18  # where a model names none
_PROTOBUF_LIMIT = 2**31 - 1
_MAIN_DOMAIN = ("", "ai.onnx")

Source: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def load(source: Source) -> onnx.ModelProto:
    """A checked, shape-inferred copy of the model, at opset 7 or later, with external data inside, and with standard
    operators in the place of contributed ones.

    ``source`` is a path, the bytes of a file, or a model (left unchanged). External data is read only from the file's
    own folder, so only for a path. Raises ``ModelFileError``.
    """
    name = _name(source)
    try:
        model = _parse(source, name)
        open_meaningless(model, name)
        check_messages(model, name)
        check_functions(model, name)
        _check_versions(model, name)
        load_external(model, Path(source).parent if isinstance(source, str | os.PathLike) else None, name)
        expand(model)
        light = WithoutWeights(model)
        checked = _with_dense_initializers(_check(light.model, name), name)
        _import_main_domain(checked)
        modern = _modern(checked, name)
        spell_out(modern)
        model = light.restore(_infer(modern, name))
        check_declared_sizes(model, name)
    except RecursionError as error:
        raise ModelFileError(f"{name}: messages are nested too deeply; the file is damaged, export it again") from error
    return model


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The main graph's initializers by name; bfloat16 and the like as ``ml_dtypes`` arrays."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _with_dense_initializers(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Shape inference does not know sparse initializers; a checked model has their indices in range."""
    for sparse in model.graph.sparse_initializer:
        size = math.prod(sparse.dims)
        if size > _PROTOBUF_LIMIT:
            raise ModelFileError(
                f"{name}: sparse tensor {sparse.values.name[:100]!r} has {size} elements; expected below 2**31"
            )
        model.graph.initializer.append(numpy_helper.from_array(dense(sparse), sparse.values.name))
    del model.graph.sparse_initializer[:]
    return model


def _name(source: Source) -> str:
    return str(Path(source)) if isinstance(source, str | os.PathLike) else f"<{type(source).__name__}>"


def _parse(source: Source, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    if isinstance(source, onnx.ModelProto):
        model.CopyFrom(source)
        return model
    data = source if isinstance(source, bytes) else _read(Path(source), name)
    if not data:
        raise ModelFileError(f"{name}: the file is empty; expected an ONNX model. Export it again")
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(
            f"{name}: expected an ONNX model, found {len(data)} bytes that are not one protobuf message ({error}). "
            "The file is truncated, damaged or of another format; export or download it again"
        ) from error
    return model


def _read(path: Path, name: str) -> bytes:
    try:
        size = path.stat().st_size
        if size > _PROTOBUF_LIMIT:
            raise ModelFileError(f"{name}: {size} bytes exceed protobuf's 2 GiB; save the weights as external data")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{name}: cannot be read ({error}); expected the path of an ONNX file") from error


def _check_versions(model: onnx.ModelProto, name: str) -> None:
    if not model.HasField("graph"):
        raise ModelFileError(f"{name}: holds no graph; the file is truncated or not an ONNX model. Export it again")
    if not model.graph.node:
        raise ModelFileError(f"{name}: the graph is empty; expected at least one node")
    if not _OLDEST_IR <= model.ir_version <= onnx.IR_VERSION:
        raise ModelFileError(
            f"{name}: IR version {model.ir_version}, expected {_OLDEST_IR} to {onnx.IR_VERSION}. "
            "Export for a supported version"
        )
    newest = onnx.defs.onnx_opset_version()
    for domain, version in _opsets(model):
        if domain in _MAIN_DOMAIN and not 1 <= version <= newest:
            raise ModelFileError(f"{name}: opset {version}, expected 1 to {newest}. Export with opset_version={newest}")
    if not _opsets(model):
        raise ModelFileError(f"{name}: no opset is imported. Export it again")


def _import_main_domain(model: onnx.ModelProto) -> None:
    """Models of other domains only need not say which version of the ONNX domain they mean; lowerings do."""
    if not any(domain in _MAIN_DOMAIN for domain, _ in _opsets(model)):
        model.opset_import.add(domain="", version=_ASSUMED_OPSET)


def _opsets(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(opset.domain, opset.version) for opset in model.opset_import]


def _check(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model itself. The checker wants a name, and the shape of each result, which inference finds as well."""
    model.graph.name = model.graph.name or "graph"
    results = [v.type.tensor_type for v in model.graph.output if v.type.HasField("tensor_type")]
    open_shapes = [tensor for tensor in results if not tensor.HasField("shape")]
    for tensor in open_shapes:
        tensor.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # ValidationError, or whatever the C++ side meets in a damaged model
        raise ModelFileError(
            f"{name}: fails the ONNX checker: {_first_lines(error)}. Repair or export it again"
        ) from error
    for tensor in open_shapes:
        tensor.ClearField("shape")
    return model


def _modern(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    oldest = _SIGNED_AXES if any(map(_counts_from_behind, model.graph.node)) else _OLDEST_OPSET
    if _version(model) >= oldest:
        return model
    _align_slopes(model)
    return _convert(model, oldest, name)


def _counts_from_behind(node: onnx.NodeProto) -> bool:
    """Has it axes that other runtimes take in all versions, and inference from opset 11 on?"""
    axes = [n for a in node.attribute if a.name == "axes" for n in a.ints]
    return node.op_type in ("Squeeze", "Unsqueeze") and node.domain in _MAIN_DOMAIN and min(axes, default=0) < 0


def _version(model: onnx.ModelProto) -> int:
    return max(version for domain, version in _opsets(model) if domain in _MAIN_DOMAIN)


def _convert(model: onnx.ModelProto, target: int, name: str) -> onnx.ModelProto:
    try:
        converted = onnx.version_converter.convert_version(model, target)
        _store_constants(converted.graph)
        return _check(converted, name)
    except ModelFileError:
        raise
    except Exception as error:  # the converter raises RuntimeError, ValueError and its own kinds
        raise ModelFileError(
            f"{name}: opset {_version(model)} cannot be converted to {target}: {_first_lines(error)}. "
            f"Export with opset_version={target} or later"
        ) from error


def _store_constants(graph: onnx.GraphProto) -> None:
    """Constants that the converter makes of attributes are integers, which nodes of the old versions cannot hold."""
    constants = [n for n in graph.node if n.op_type == "Constant" and any(a.name == "value" for a in n.attribute)]
    for node in constants:
        tensor = next(a.t for a in node.attribute if a.name == "value")
        stored = graph.initializer.add()
        stored.CopyFrom(tensor)
        stored.name = node.output[0]
        graph.node.remove(node)


def _align_slopes(model: onnx.ModelProto) -> None:
    """Up to opset 6 the slopes of PRelu belong to axis 1, which the converter does not know: give them their axes."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*inferred.input, *inferred.value_info)}
    ranks |= {t.name: len(t.dims) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        rank = ranks.get(node.input[0], 0) if node.op_type == "PRelu" else 0
        if rank > 2 and ranks.get(node.input[1]) == 1:
            aligned = f"{node.output[0]}/slope"
            axes = list(range(1, rank - 1))
            model.graph.node.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [aligned], axes=axes))
            node.input[1] = aligned
        model.graph.node.append(node)


def _infer(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """``infer``; where it fails, with the attributes spelled out that functions of the standard expect."""
    try:
        return infer(model, name)
    except ModelFileError:
        if not _spell_out_attributes(model):
            raise
    return infer(model, name)


def _spell_out_attributes(model: onnx.ModelProto) -> bool:
    """Give operators that are functions the default values of the attributes that they leave out; was there any?"""
    changed = False
    for node in model.graph.node:
        if node.domain not in _MAIN_DOMAIN or not onnx.defs.has(node.op_type):
            continue
        schema = onnx.defs.get_schema(node.op_type, _version(model), "")
        present = {a.name for a in node.attribute}
        missing = [a.default_value for n, a in schema.attributes.items() if n not in present and a.default_value.name]
        if schema.has_function and missing:
            node.attribute.extend(missing)
            changed = True
    return changed


def infer(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A copy of ``model`` with the types and shapes of its values; ``name`` is for messages. ``model`` may lose a
    ``ceil_mode`` that adds nothing.

    Where the shapes that it declares of results do not fit what its nodes compute, they are passed over with a warning.
    Raises ModelFileError.
    """
    inferred = _infer_once(model, name)
    while lower_ceiling(model, inferred):
        inferred = _infer_once(model, name)
    return inferred


def _infer_once(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    try:
        return _strictly(model)
    except Exception as error:  # InferenceError, or whatever the C++ side meets in a damaged model
        inferred = _without_declared(model)
        if inferred is None:
            raise ModelFileError(
                f"{name}: shapes or types do not fit together: {_first_lines(error)}. Repair or export it again"
            ) from error
        warn_of_results(name, _first_lines(error))
        return inferred


def _strictly(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_stand_ins(
        model, partial(onnx.shape_inference.infer_shapes, check_type=True, strict_mode=True, data_prop=True)
    )


def _without_declared(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Types and shapes as the graph has them, whatever is declared of results; None where they do not fit either."""
    try:
        return _strictly(without_results(model))
    except Exception:  # the same kinds: what is said of the model as it is, is what is wrong with it
        return None


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("==>")]
    return " ".join(lines[:2])[:500] or type(error).__name__
