"""daceopt behind ONNX's own interface for backends (``onnx.backend.base``), which its conformance suite drives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend import base

from daceopt.errors import DaceoptError
from daceopt.models.onnx_model import OnnxModel, from_onnx

__all__ = ["BackendRep", "OnnxBackend", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]


class BackendRep(base.BackendRep):
    """A prepared model; ``run`` takes its inputs as a list in the model's order, or as a dictionary by name."""

    def __init__(self, model: OnnxModel):
        self.model = model
        self._outputs = base.namedtupledict("Outputs", model.output_names)

    def run(self, inputs: object, **kwargs: object) -> tuple[Any, ...]:
        """The outputs, as a tuple that also has their names. A model with one input also takes the array itself.

        Raises what :class:`daceopt.models.onnx_model.OnnxModel` raises.
        """
        if isinstance(inputs, dict):
            results = self.model(**inputs)
        else:
            results = self.model(*(inputs if isinstance(inputs, list | tuple) else [inputs]))
        return self._outputs(*([results] if len(self.model.output_names) == 1 else results))


class OnnxBackend(base.Backend):
    """Compiles for the CPU, or a CUDA device. Options: ``fallback``, ``recipe`` and ``bundle``, as for
    ``daceopt.from_onnx``."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: object) -> bool:
        """Does ``prepare`` take the model?"""
        try:
            cls.prepare(model, device, **kwargs)
        except DaceoptError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Compile ``model``. Raises ModelFileError for a damaged or hostile one, Unsupported as ``from_onnx`` does."""
        _check(device, kwargs, "fallback", "recipe", "bundle")
        return BackendRep(from_onnx(model, device=device.lower(), **kwargs))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: object, device: str = "CPU", **kwargs: object
    ) -> tuple[Any, ...]:
        """``prepare`` and ``run`` in one step."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator on arrays; ``opset_version`` (default: the newest) says which version of it.

        ``outputs_info`` has dtype and shape of each output, where they do not follow from the inputs.
        """
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        return cls.run_model(_single(node, inputs, outputs_info, version), inputs, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU, and for CUDA devices that torch sees."""
        try:
            place = torch.device(device.lower())
        except RuntimeError:
            return False
        return place.type == "cpu" or (place.type == "cuda" and (place.index or 0) < torch.cuda.device_count())


def _check(device: str, options: dict[str, Any], *allowed: str) -> None:
    if not OnnxBackend.supports_device(device):
        raise DaceoptError(f"device {device!r}: expected 'CPU', or 'CUDA' where torch sees such a device")
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise DaceoptError(f"unknown options {unknown}; expected some of {list(allowed)}")


def _single(
    node: onnx.NodeProto, inputs: Sequence[Any], outputs_info: Sequence[Any] | None, version: int
) -> onnx.ModelProto:
    helper = onnx.helper
    arrays = [np.asarray(value) for value in inputs]
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(arrays) != len(names):
        raise DaceoptError(f"{node.op_type} reads {names}; got {len(arrays)} inputs")
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names, arrays, strict=True)
    ]
    outputs = [name for name in node.output if name]
    if outputs_info is not None:
        results = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in zip(outputs, outputs_info, strict=True)
        ]
    else:
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "node", values, results)
    domains = {"": version} | ({node.domain: 1} if node.domain not in ("", "ai.onnx") else {})
    single = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in domains.items()])
    return single if outputs_info is not None else _with_results(single, arrays)


def _with_results(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> onnx.ModelProto:
    """Types of the outputs, inferred with the inputs' values known: shapes may follow from them."""
    complete = onnx.ModelProto()
    complete.CopyFrom(model)
    complete.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, v.name) for a, v in zip(arrays, model.graph.input, strict=True)
    )
    try:
        inferred = onnx.shape_inference.infer_shapes(complete, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        text = " ".join(str(error).split())[:300]
        raise DaceoptError(f"{model.graph.node[0].op_type} does not fit these inputs: {text}") from error
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model


is_compatible = OnnxBackend.is_compatible
prepare = OnnxBackend.prepare
run_model = OnnxBackend.run_model
run_node = OnnxBackend.run_node
supports_device = OnnxBackend.supports_device
