"""ONNX operators as DaCe library nodes: one class per operator, made from its schema when it is first used.

``daceopt.ir.graph.operator.OnnxSoftmax`` exists as soon as somebody asks for it: so DaCe finds the classes of nodes in
JSON.
The prefix keeps ``Range`` and its like apart from DaCe's own classes, which JSON names without their modules.
"""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar

import dace.library
import numpy as np
from dace.properties import ListProperty, Property, make_properties
from dace.sdfg.nodes import LibraryNode

from daceopt.ir.graph.plain_properties import plain


def _encode(value: object) -> Any:
    if isinstance(value, np.ndarray):
        raw = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": raw, "dtype": value.dtype.str, "shape": list(value.shape)}
    if hasattr(value, "SerializeToString"):
        return {"proto": type(value).__name__, "bytes": base64.b64encode(value.SerializeToString()).decode()}
    return value


def _decode(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        raw = base64.b64decode(value["array"])
        return np.frombuffer(raw, dtype=value["dtype"]).reshape(value["shape"]).copy()
    import onnx

    proto = getattr(onnx, value["proto"])()
    proto.ParseFromString(base64.b64decode(value["bytes"]))
    return proto


class AttributesProperty(Property):
    """A dictionary of attribute values: numbers, strings, lists, numpy arrays and ONNX graphs."""

    @property
    def dtype(self) -> type:
        return dict

    def to_json(self, obj: dict[str, Any]) -> dict[str, Any]:
        return {key: _encode(value) for key, value in obj.items()}

    @staticmethod
    def from_json(obj: dict[str, Any], context: object = None) -> dict[str, Any]:
        return {key: _decode(value) for key, value in obj.items()}


@make_properties
class Operator(LibraryNode):
    """An ONNX operator; subclasses carry the operator's name, instances the version, the attributes and the connectors.

    ``attributes`` holds the schema's defaults where the model gave none. ``input_connectors`` and ``output_connectors``
    are by position; connectors of absent optional operands are in the list but not on the node.
    """

    implementations: ClassVar[dict[str, Any]] = {}
    default_implementation: ClassVar[str | None] = None
    op_type: ClassVar[str] = ""
    domain: ClassVar[str] = ""

    since_version = Property(dtype=int, default=0, desc="Version of the schema; 0 when the operator has none")
    attributes: Any = AttributesProperty(default={}, desc="Attribute values by name")
    input_connectors = ListProperty(element_type=str, default=[], desc="Input connectors by position")
    output_connectors = ListProperty(element_type=str, default=[], desc="Output connectors by position")

    def __init__(
        self,
        since_version: int = 0,
        attributes: dict[str, Any] | None = None,
        inputs: Iterable[str] = (),
        outputs: Iterable[str] = (),
    ) -> None:
        super().__init__(self.op_type, inputs=set(inputs), outputs=set(outputs))
        self.since_version = since_version
        self.attributes = dict(attributes or {})
        self.input_connectors = list(inputs)
        self.output_connectors = list(outputs)

    def output_connector(self, position: int) -> str:
        """The connector of an output, which from now on may be there."""
        present = len(self.output_connectors)
        self.output_connectors += [f"Extra_{k}" for k in range(present, position + 1)]
        return self.output_connectors[position]

    def __deepcopy__(self, memo: dict[int, Any]) -> Operator:
        twin = super().__deepcopy__(memo)
        for name in ("_in_connectors", "_out_connectors"):
            setattr(twin, name, copy.copy(getattr(self, name)))
        return twin

    @classmethod
    def version_in(cls, opset: int | None) -> int:
        """``since_version`` of a node that :func:`make` makes for an opset (None: the newest)."""
        schema = schema_of(cls.op_type, cls.domain, opset) or schema_of(cls.op_type, cls.domain)
        return 0 if schema is None else int(schema.since_version)

    def attribute(self, name: str, default: object = None) -> Any:
        """The value of an attribute, or ``default`` when neither the model nor the schema gives one."""
        value = self.attributes.get(name)
        return default if value is None else value


def make(
    op_type: str, domain: str, inputs: int, outputs: int, attributes: dict[str, Any], version: int | None = None
) -> Operator:
    """A node with ``inputs`` and ``outputs`` operands, by the schema of opset ``version`` (default: the newest).

    An operator without a schema gets positional connectors and no defaults; nothing can lower it, so it falls back.
    """
    domain = "" if domain == "ai.onnx" else domain
    # what is newer than the model's opset (a lifted operator) has only its newest schema
    schema = schema_of(op_type, domain, version) or schema_of(op_type, domain)
    plain = {key: _plain(value) for key, value in attributes.items()}
    if schema is None:
        names_in, names_out = _numbered_names("In", inputs), _numbered_names("Out", outputs)
        return operator_class(op_type, domain)(0, plain, names_in, names_out)
    names_in = _connectors(schema.inputs, inputs, set())
    names_out = _connectors(schema.outputs, outputs, set(names_in))
    values = {**_defaults(op_type, domain, schema.since_version), **plain}
    return operator_class(op_type, domain)(schema.since_version, values, names_in, names_out)


def schema_of(op_type: str, domain: str = "", version: int | None = None) -> Any | None:
    """The ``onnx.defs.OpSchema`` in force at opset ``version`` (default: the newest), or None."""
    import onnx.defs

    try:
        if version is None:
            return onnx.defs.get_schema(op_type, domain)
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def operator_class(op_type: str, domain: str = "") -> type[Operator]:
    """The node class of an operator, made and registered with DaCe at the first call."""
    name = _class_name(op_type, domain)
    body: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f"The ONNX operator {op_type}.",
        "op_type": op_type,
        "domain": domain,
        "implementations": {},
        "default_implementation": None,
    }
    return plain(dace.library.node(type(name, (Operator,), body)))


def _class_name(op_type: str, domain: str) -> str:
    """A Python identifier from which :func:`__getattr__` recovers the operator; hexadecimal unless a plain word."""
    if not domain and re.fullmatch(r"[A-Z][A-Za-z0-9]*", op_type):
        return f"Onnx{op_type}"
    return f"Op_{domain.encode().hex()}_{op_type.encode().hex()}"


def __getattr__(name: str) -> type[Operator]:
    coded = re.fullmatch(r"Op_([0-9a-f]*)_([0-9a-f]*)", name)
    if coded:
        domain, op_type = (bytes.fromhex(part).decode() for part in coded.groups())
        return operator_class(op_type, domain)
    plain = re.fullmatch(r"Onnx([A-Z][A-Za-z0-9]*)", name)
    if plain:
        return operator_class(plain[1])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _numbered_names(stem: str, count: int) -> list[str]:
    return [f"{stem}_{i}" for i in range(count)]


def _connectors(formals: Any, count: int, names_in_use: set[str]) -> list[str]:
    """Connector names for ``count`` operands: the schema's, with a capital, so that they never meet an array's name."""
    names: list[str] = []
    for formal in formals:
        stem = re.sub(r"[^A-Za-z0-9]+", "_", formal.name).strip("_") or "Operand"
        stem = stem[0].upper() + stem[1:]
        stem = f"{stem}_out" if stem in names_in_use else stem
        variadic = formal.option == formal.option.Variadic
        names += _numbered_names(stem, count - len(names)) if variadic else [stem]
    names += [f"Extra_{i}" for i in range(len(names), count)]
    return names[:count]


@cache
def _defaults(op_type: str, domain: str, version: int) -> dict[str, Any]:
    import onnx

    schema = onnx.defs.get_schema(op_type, version, domain)
    protos = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    return {name: _plain(onnx.helper.get_attribute_value(value)) for name, value in protos.items()}


def _plain(value: Any) -> Any:
    """Attribute values as Python has them: text for bytes, lists for repeated fields, numpy arrays for tensors."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if type(value).__name__ == "TensorProto":
        from onnx import numpy_helper

        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)) or type(value).__name__.startswith("Repeated"):
        return [_plain(v) for v in value]
    return value
