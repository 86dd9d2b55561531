"""Operators of ATen: host calls of ``libs/aten_call.py`` as C++ that goes through torch's dispatcher.

The payload is printed when the program is built, so nothing is read of it in a call, and Python is entered only by
operators that are written in it. The arguments find the types of the operator's schema in ``src/torch_call.cpp``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from daceopt.codegen import target
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.nodes.library import HostCall
from daceopt.libs import aten_call, host
from daceopt.libs.base import Requirements, register, support
from daceopt.libs.emission import boolean, literal, number, whole
from daceopt.libs.torch_arrays import array, place, why_no_tensors
from daceopt.libs.torch_headers import TorchOperators, link_to_torch

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_READ = ("item", "number")  # kinds of arguments that the host reads of an array


class TorchCall(TorchOperators):
    """Calls of ATen's operators, and refusals in their place, wherever torch keeps arrays."""

    name: ClassVar[str] = "torch_call"
    targets: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any call of ATen whose arrays and devices are those of the program."""
        if not isinstance(node, HostCall) or node.callback not in (aten_call.RUN, aten_call.REFUSE):
            return "for calls of ATen only"
        if node.callback == aten_call.REFUSE:
            return None
        here = target.get(graph.options.target).device
        arguments = _decode(node.payload)["arguments"].values()
        if elsewhere := {content for kind, content in _tag(arguments) if kind == "device"} - {here}:
            return f"an argument names the device {', '.join(elsewhere)}; arrays are on {here}"
        try:
            _ = [_value(v) for v in arguments]
        except Unsupported as error:
            return str(error)
        return why_no_tensors(graph, node.operands(graph).values())

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, HostCall)
        if node.callback == aten_call.REFUSE:
            return f"daceopt::torch_refusal({literal(node.payload)});"
        text = _decode(node.payload)
        inputs, outputs = host.operands(graph, node)
        orders = [*text["orders"], *[[]] * len(inputs)]
        operands = [
            f"{{{array(graph, inputs, c)}, {boolean(_is_complex(kind))}, {{{', '.join(map(str, order))}}}}}"
            for c, kind, order in zip(inputs, text["types"], orders)
        ]
        results = [
            f"{{{position}, {boolean(_is_complex(kind))}, {array(graph, outputs, c)}}}"
            for c, (position, kind, _) in zip(outputs, text["results"], strict=True)
        ]
        schema = aten_call.operator(text["target"])._schema
        arguments = [_value(text["arguments"][a.name]) for a in schema.arguments]
        argument_text = ", ".join(
            f"std::vector<{kind}>{{{', '.join(values)}}}"
            for kind, values in (
                ("int64_t", map(whole, node.sizes)),
                ("daceopt::CallOperand", operands),
                ("daceopt::CallResult", results),
            )
        )
        name = f"{literal(schema.name)}, {literal(schema.overload_name)}"
        values = f"static const std::vector<daceopt::CallValue> call_values{{{', '.join(arguments)}}};"
        return f"{{ {values} daceopt::torch_call({place(graph)}, {name}, call_values, {argument_text}); }}"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        assert isinstance(node, HostCall)
        needs = support(
            "torch_call.cpp",
            header="torch_call.h",
            flags=link_to_torch(),
            version=self.version(),
            standard="c++20",
        )
        return replace(needs, repeats=node.callback == aten_call.RUN and _repeats(_decode(node.payload)))


def _repeats(text: Mapping[str, Any]) -> bool:
    """Whether a call only starts kernels, the same ones each time: surely so where torch's tags say what they are."""
    import torch

    if any(kind in _READ for kind, _ in _tag(text["arguments"].values())):
        return False
    tags = aten_call.operator(text["target"]).tags
    kernels = {torch.Tag.pointwise, getattr(torch.Tag, "reduction", torch.Tag.pointwise)}
    return not kernels.isdisjoint(tags) and torch.Tag.nondeterministic_seeded not in tags


@lru_cache(1024)
def _decode(payload: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(payload)
    return content


def _is_complex(kind: str) -> bool:
    return kind.startswith("complex")


def _tag(values: Any) -> Iterator[tuple[str, Any]]:
    """Kind and content of each argument that is no plain value."""
    for value in values:
        if isinstance(value, list):
            yield from _tag(value)
        elif isinstance(value, dict):
            yield from value.items()


def _value(value: Any) -> str:
    """An argument of the payload as a ``daceopt::CallValue``; raises Unsupported for integers of more than 64 bits."""
    if not isinstance(value, dict):
        return _PLAIN[type(value)](value)
    ((kind, content),) = value.items()
    if kind not in _TAGGED:
        raise DaceoptError(f"an argument of the kind {kind!r} in a call of ATen")
    return _TAGGED[kind](content)


def _integer(value: int) -> str:
    if not -(2**63) < value < 2**63:
        raise Unsupported(f"the argument {value}: expected an integer of 64 bits")
    return _make("kInteger", value)


def _make(
    kind: str,
    integer: int = 0,
    real: float = 0.0,
    imaginary: float = 0.0,
    text: str = "",
    items: Iterable[str] = (),
) -> str:
    parts = number(real), number(imaginary), literal(text), f"{{{', '.join(items)}}}"
    return f"daceopt::CallValue{{daceopt::CallValue::{kind}, {integer}, {', '.join(parts)}}}"


# by the type of JSON, and by the kind that aten_call wrote before the content
_PLAIN: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: _make("kNone"),
    bool: lambda value: _make("kBool", int(value)),
    int: _integer,
    str: lambda value: _make("kText", text=value),
    list: lambda value: _make("kList", items=map(_value, value)),
}
_TAGGED: dict[str, Callable[[Any], str]] = {
    "tensor": lambda content: _make("kArray", content),
    "item": lambda content: _make("kItem", content),
    "number": lambda content: _make("kItem", content),
    "size": lambda content: _make("kSize", content),
    "float": lambda content: _make("kFloat", real=float.fromhex(content)),
    "complex": lambda content: _make("kComplex", 0, float.fromhex(content[0]), float.fromhex(content[1])),
    "torch": lambda content: _make("kName", text=content),
    "device": lambda _: _make("kDevice"),
}

register(TorchCall())
