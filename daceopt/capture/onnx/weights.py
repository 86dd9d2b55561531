"""Large initializers stand aside while ONNX's C++ code looks at a model: it copies all that it is given, twice."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

_LARGE = 1 << 16
"""Bytes of data from which a tensor is no shape, no list of indices and no scalar that inference could want to know."""


class WithoutWeights:
    """``model``: a copy of a model whose tensors are known to hold what they say, with large initializers as inputs."""

    def __init__(self, model: onnx.ModelProto):
        self._large = [t for t in model.graph.initializer if len(t.raw_data) >= _LARGE]
        self._inputs = len(model.graph.input)
        self.model = onnx.ModelProto()
        names = {t.name for t in self._large}
        _copy(model, self.model, "graph")
        _copy(model.graph, self.model.graph, "initializer")
        self.model.graph.initializer.extend(t for t in model.graph.initializer if t.name not in names)
        declared = {v.name for v in model.graph.input}
        for t in self._large:
            if t.name not in declared:
                self.model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))

    def restore(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """``model``, which was made of ``self.model``, changed in place: with all initializers, and no other inputs."""
        del model.graph.input[self._inputs :]
        model.graph.initializer.extend(self._large)
        return model


def _copy(source: Any, target: object, left_out: str) -> None:
    """All fields but one."""
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if field.is_repeated:
            getattr(target, field.name).extend(value)
        elif field.type == field.TYPE_MESSAGE:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
