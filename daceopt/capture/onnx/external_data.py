"""Brings a model's external tensors into the model, reading only regular files inside the model's own folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx
from onnx import TensorProto

from daceopt.capture.onnx.limits import byte_count
from daceopt.errors import ModelFileError

_LIMIT = 2**31 - 1  # the model must still fit one protobuf message for the checker


def load_external(model: onnx.ModelProto, folder: Path | None, name: str) -> None:
    """Fill ``raw_data`` of every external tensor from ``folder`` (None: the model came without one). Raises
    ``ModelFileError``.
    """
    total = 0
    for tensor in _external_tensors(model):
        where = f"{name}: external data of tensor {tensor.name[:100]!r}"
        if folder is None:
            raise ModelFileError(f"{where} needs the model's folder; pass the path of the file instead of its content")
        total += byte_count(tensor)
        if total > _LIMIT:
            raise ModelFileError(f"{where}: more than 2 GiB of weights in one model are not supported")
        tensor.raw_data = _read(tensor, folder, where)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _external_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    stack: list[Any] = [model.graph, *model.functions]
    while stack:
        graph = stack.pop()
        if isinstance(graph, onnx.GraphProto):
            yield from _external(graph.initializer)
            yield from _external(t for s in graph.sparse_initializer for t in (s.values, s.indices))
        for attribute in (a for node in graph.node for a in node.attribute):
            yield from _external([attribute.t, *attribute.tensors])
            yield from _external(
                t for s in (attribute.sparse_tensor, *attribute.sparse_tensors) for t in (s.values, s.indices)
            )
            stack.extend([attribute.g, *attribute.graphs])


def _external(tensors: Any) -> Iterator[TensorProto]:
    return (t for t in tensors if t.data_location == TensorProto.EXTERNAL)


def _read(tensor: TensorProto, folder: Path, where: str) -> bytes:
    if tensor.data_type == TensorProto.STRING:
        raise ModelFileError(f"{where}: text tensors cannot be external; export the model again")
    info = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside(info.get("location", ""), folder, where)
    expected = byte_count(tensor)
    offset = _number(info, "offset", 0, where)
    length = _number(info, "length", expected, where)
    size = path.stat().st_size
    if length != expected:
        raise ModelFileError(
            f"{where}: shape {list(tensor.dims)} takes {expected} bytes, the model says {length}; export it again"
        )
    if offset + length > size:
        raise ModelFileError(
            f"{where}: {path} has {size} bytes, expected {offset + length}; the file is truncated, fetch it again"
        )
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _inside(location: str, folder: Path, where: str) -> Path:
    """The file that ``location`` names, which must lie in ``folder`` even after links are followed."""
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or location.startswith("\\")
    if not location or absolute or ".." in PurePosixPath(location.replace("\\", "/")).parts:
        raise ModelFileError(
            f"{where} points to {location[:200]!r}; expected a relative path inside the model's folder {folder}"
        )
    try:
        path = (folder / location).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"{where}: {location[:200]!r} is missing in {folder} ({error}); put it beside the model"
        ) from error
    if not path.is_relative_to(folder.resolve()):
        raise ModelFileError(
            f"{where}: {location[:200]!r} is a link to {path}, outside the model's folder {folder}; copy the file there"
        )
    if not path.is_file():
        raise ModelFileError(f"{where}: {location[:200]!r} is not a regular file")
    return path


def _number(info: dict[str, str], key: str, default: int, where: str) -> int:
    text = info.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelFileError(f"{where} has {key} {text[:50]!r}; expected a number of bytes")
    return int(text)
