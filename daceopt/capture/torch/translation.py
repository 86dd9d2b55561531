"""A functional graph of ATen operators becomes an :class:`ir.Graph` of operator nodes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import numpy as np
import sympy
import torch
from torch import fx

from daceopt.capture.torch import sizes, table
from daceopt.capture.torch.calls import (
    ArrayOrNumber,
    AtenCall,
    Context,
    Item,
    NumberArray,
    Operand,
    Promise,
    by_name,
    to_numpy,
)
from daceopt.capture.torch.custom_gradient import Backward
from daceopt.capture.torch.folding import is_repeated, known_values, needs
from daceopt.capture.torch.lines import line_of, note_line
from daceopt.capture.torch.numbers import holder_of, takes_float
from daceopt.capture.torch.strides import dense_order
from daceopt.errors import Unsupported
from daceopt.ir.data.provenance import Origins
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim, Shape, dim
from daceopt.ir.scalar.types import DType
from daceopt.libs import aten_call
from daceopt.ops.core import widening
from daceopt.ops.families.random import stream
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.fake_tensors import FakeTensor

logger = logging.getLogger("daceopt.importer")

DOMAIN = "aten"  # of calls that stay one node
# why a call without a rule is left to ATen
NONE, COMPLEX = "no native form", "no native form for complex numbers"

_ROOT = re.compile(r"^[LG]\['\w+'\](\.__self__)?\.?")  # what Dynamo calls the module that is compiled
_DRAWING = ("Dropout", "Multinomial")  # operators of ONNX that draw random numbers


class Translation:
    """Adds ATen calls to ``graph``; rules get it as their first argument.

    ``b`` builds kernels and views. ``promised`` describes the results of the call that is being translated, ``shape``
    and ``dtype`` its first one. ``whole``: calls whose derivative is PyTorch's own stay one node of the domain ``aten``
    until they are lowered, an operator of the type that it says.
    """

    def __init__(self, graph: Graph, context: Context, whole: Callable[[AtenCall], str] | None = None) -> None:
        self.graph, self.context, self.whole = graph, context, whole
        self.sizes = context.sizes
        self.call: AtenCall | None = None
        self.promised: tuple[Promise, ...] = ()
        self._streams = 0  # of random numbers that the call has so far
        self._changing: set[str] = set()  # arguments that the call changes, and those with new values of some rows

    # ---------------------------------------------------------------- what rules use

    def is_changing(self, name: str) -> bool:
        """Whether it is an argument that the call changes, or one of which some rows have new values."""
        return name in self._changing

    def note_changing(self, name: str) -> str:
        """``name``, an argument that the call changes, or with new values of some rows."""
        self._changing.add(name)
        return name

    @property
    def b(self) -> Builder:
        """A builder that names what it adds after the call."""
        return Builder(self.graph, self.label)

    @property
    def label(self) -> str:
        """The operator's name, for kernels."""
        return "value" if self.call is None else self.call.target._schema.name.rpartition("::")[2].strip("_")

    @property
    def shape(self) -> Shape:
        """Of the first result."""
        return self.promised[0].shape

    @property
    def dtype(self) -> DType:
        """Of the first result."""
        return self.promised[0].dtype

    @property
    def promises_complex(self) -> bool:
        """Whether the first result is complex: its shape has both parts, too."""
        first = self.call.results[0] if self.call is not None else None
        return first is not None and first.is_complex()

    def shape_of(self, name: str) -> Shape:
        return self.graph.shape(name)

    def dtype_of(self, name: str) -> DType:
        return self.graph.dtype(name)

    def operator(self, op_type: str, *inputs: str | None, **options: Any) -> str:
        """Add an operator node with one result, as :meth:`operators` does."""
        (result,) = self.operators(op_type, *inputs, **options)
        return result

    def operators(
        self,
        op_type: str,
        *inputs: str | None,
        domain: str = "",
        results: Sequence[Promise | None] | None = None,
        **attributes: object,
    ) -> tuple[str, ...]:
        """Add an operator node; its ``results`` (default: those promised)."""
        declared = self.promised if results is None else results
        outputs: list[Any] = [
            None if p is None else self.graph.add_array(self.label, p.shape, p.dtype) for p in declared
        ]
        present = {k: v for k, v in attributes.items() if v is not None}
        coming = [k for k, v in present.items() if isinstance(v, NumberArray)]
        if coming:
            raise Unsupported(f"a number that comes with the call as {coming[0]}")
        if op_type in _DRAWING:
            present["stream"] = self.stream()
        node = widening.add_operator(self.graph, op_type, inputs, outputs, present, domain)
        node.source_name = self.label
        return tuple(outputs)

    def stream(self) -> int:
        """The number of another stream of random numbers: the same wherever and whenever the call is built, so that
        programs with and without a backward draw the same."""
        self._streams += 1
        # 31 bits, so that it may be an attribute
        return stream(f"{0 if self.call is None else self.call.position}:{self._streams}") & 0x7FFFFFFF

    def kernel(
        self,
        fn: Callable[..., sympy.Expr],
        *operands: ArrayOrNumber,
        dtype: DType | None = None,
        compute: DType | None = None,
    ) -> str:
        """``fn`` of the operands' elements, broadcast to the first result's shape, as ``dtype`` (default: promised).

        Operands are arrays or numbers, converted to the dtype ``compute`` where that is given.
        """
        compute = None if compute is None else types.compute_type(compute)
        arrays = [self.array(x, compute) if not isinstance(x, str) else x for x in operands]

        def convert(*elements: sympy.Expr) -> sympy.Expr:
            if compute is None:
                return fn(*elements)
            return fn(*(scalar.cast(e, compute) if self._differs(a, compute) else e for a, e in zip(arrays, elements)))

        out = self.graph.add_array(self.label, self.shape, self.dtype if dtype is None else dtype)
        final = self.dtype_of(out)
        return str(self.b.elementwise(lambda *e: _to_stored(convert(*e), final), *arrays, out=out, dtype=final))

    def _differs(self, name: str, dtype: DType) -> bool:
        return bool(types.compute_type(self.graph.dtype(name)) != dtype)

    def array(self, value: ArrayOrNumber, dtype: DType) -> str:
        """An array of ``dtype``: ``value`` itself or cast, or of one element for a number or an extent."""
        if isinstance(value, str):
            return self.cast(value, dtype)
        if isinstance(value, (bool, int, float)):
            return self.b.constant(np.asarray(value).astype(types.to_numpy(dtype)))
        extent = dim(value)
        out = self.graph.add_array("size", (), dtype)
        self.b.map((), {}, {"out": (out, lambda: ())}, lambda i: scalar.cast(extent, dtype), label="size")
        return out

    def cast(self, name: str, dtype: DType) -> str:
        """``name`` as ``dtype``, by PyTorch's conversions."""
        if self.graph.dtype(name) == dtype:
            return name
        promise = Promise(self.graph.shape(name), dtype)
        return self.operator("Cast", name, results=[promise], to=types.to_onnx(dtype))

    def integers(self, values: Sequence[Dim]) -> str | None:
        """An int64 operand that states sizes; None where they are not all numbers (the declared shape says them)."""
        if not all(isinstance(v, int) for v in values):
            return None
        return self.b.constant(np.asarray(values, np.int64))

    def reshape(self, name: str, shape: Sequence[Dim]) -> str:
        """``name`` in row-major order with another shape."""
        if tuple(shape) == self.graph.shape(name):
            return name
        promise = Promise(tuple(shape), self.graph.dtype(name))
        return self.operator("Reshape", name, self.integers(shape), results=[promise])

    def transpose(self, name: str, perm: Sequence[int]) -> str:
        """Axis k of the result is axis ``perm[k]``."""
        shape = self.graph.shape(name)
        if list(perm) == list(range(len(shape))):
            return name
        promise = Promise(tuple(shape[p] for p in perm), self.graph.dtype(name))
        return self.operator("Transpose", name, results=[promise], perm=list(perm))

    def expand(self, name: str, shape: Sequence[Dim]) -> str:
        """``name`` broadcast to ``shape``."""
        if tuple(shape) == self.graph.shape(name):
            return name
        promise = Promise(tuple(shape), self.graph.dtype(name))
        return self.operator("Expand", name, self.integers(shape), results=[promise])

    # ---------------------------------------------------------------- calls

    def apply(self, call: AtenCall, operands: Sequence[str]) -> list[str | None]:
        """Add ``call`` on arrays; one array per result (None: nothing reads it)."""
        outer = self.call, self.promised, self._streams
        self.call, self._streams = call, 0
        self.promised = tuple(Promise((), None) if r is None else self.promise(r) for r in call.results)
        try:
            return self._apply(call, operands)
        finally:
            self.call, self.promised, self._streams = outer

    def _apply(self, call: AtenCall, operands: Sequence[str]) -> list[str | None]:
        entry = table.entry_of(call.target, call.is_complex)
        if self.whole and (entry is None or entry.derivative == "aten") and _is_differentiable(call):
            return self._opaque(call, operands)
        if entry is None:
            return self.host(call, operands, COMPLEX if call.is_complex else NONE)
        try:
            result = entry.rule(self, **_with_arrays(call.arguments, operands))
        except _refusals(call) as error:
            if self.whole and _is_differentiable(call):
                return self._opaque(call, operands)
            return self.host(call, operands, _reason(call, error))
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        self._check(call, results)
        return results

    def _opaque(self, call: AtenCall, operands: Sequence[str]) -> list[str | None]:
        outputs = [None if p.dtype is None else self.graph.add_array(self.label, *p) for p in self.promised]
        assert self.whole is not None
        node = self.graph.add_operator(self.whole(call), list(operands), outputs, {"call": call}, DOMAIN)
        node.label = self.graph.maker.label or self.label
        return outputs

    def host(self, call: AtenCall, operands: Sequence[str], reason: str) -> list[str | None]:
        """Let ATen itself run the call when the program runs."""
        self.context.hosted.setdefault(str(call.target).removeprefix("aten."), reason)
        complexes = [[k for k, x in enumerate(side) if x is not None and x.is_complex()]
                     for side in (call.operands, call.results)]  # fmt: skip
        orders = [dense_order(x) or tuple(range(x.dim())) for x in call.operands]
        arguments = (call.target, call.arguments, operands, self.promised)
        return aten_call.add(self.graph, *arguments, complexes[0], complexes[1], orders)

    def promise(self, tensor: torch.Tensor) -> Promise:
        """The extents and element type of a fake tensor's array; a complex one's has one more axis for both parts."""
        if tensor.layout is not torch.strided:
            raise Unsupported(f"a tensor of layout {tensor.layout}")
        if tensor.is_complex():
            return Promise((*self.sizes.shape(tensor.shape), 2), types.from_torch(tensor.dtype.to_real()))
        return Promise(self.sizes.shape(tensor.shape), types.from_torch(tensor.dtype))

    def _check(self, call: AtenCall, results: Sequence[str | None]) -> None:
        for k, (name, promise) in enumerate(zip(results, self.promised, strict=True)):
            if name is None or promise.dtype is None:
                continue
            actual = Promise(self.graph.shape(name), self.graph.dtype(name))
            fits = len(actual.shape) == len(promise.shape) and all(
                dim(a - b) == 0 for a, b in zip(actual[0], promise[0])
            )
            if not fits or actual.dtype != promise.dtype:
                raise Unsupported(
                    f"result {k} of {call.target} became {types.name_of(actual.dtype)}{list(actual.shape)}; PyTorch "
                    f"promises {types.name_of(promise.dtype)}{list(promise.shape)}"
                )


def _refusals(call: AtenCall) -> tuple[type[Exception], ...]:
    """What a rule may raise to say no; one that computes with a number that comes with the call cannot work."""
    items = any(isinstance(a, Item) for a in call.arguments.values())
    return (Unsupported, TypeError, ValueError, AttributeError) if items else (Unsupported,)


def _reason(call: AtenCall, error: Exception) -> str:
    """Why ATen runs a call, in words about the call."""
    coming = [name for name, value in call.arguments.items() if isinstance(value, Item)]
    return f"{coming[0]} is a number that changes from call to call" if coming else str(error)


def _is_differentiable(call: AtenCall) -> bool:
    return any(t.is_floating_point() or t.is_complex() for t in call.operands) and any(
        r is not None and (r.is_floating_point() or r.is_complex()) for r in call.results
    )


def _to_stored(value: object, dtype: DType) -> sympy.Expr:
    """The value as the scalar code of an array of ``dtype`` has it."""
    return scalar.cast(value, types.compute_type(dtype))


def _with_arrays(value: object, operands: Sequence[str]) -> Any:
    if isinstance(value, Item):
        return NumberArray(operands[value])
    if isinstance(value, Operand):
        return operands[value]
    if isinstance(value, Mapping):
        return {k: _with_arrays(v, operands) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_arrays(v, operands) for v in value]
    return value


# -------------------------------------------------------------------- whole graphs


@dataclass(frozen=True)
class Undecided:
    """A whole number computed from numbers in tensors: floats may be computed from it, and nothing else reads it."""

    expr: Any


class Importer:
    """Walks a functional graph; ``values`` has, per node, an array, a tuple of them, a size or a Python value."""

    def __init__(
        self,
        translation: Translation,
        module: fx.GraphModule,
        backwards: Sequence[Backward] = (),
        positions: Sequence[int] = (),
    ) -> None:
        """``positions``: the numbers of the calls that draw random numbers, where they are not counted from 0."""
        self.t, self.module, self.backwards, self.positions = translation, module, backwards, positions
        self.values: dict[fx.Node, Any] = {}
        self.floats: dict[str, NumberArray] = {}  # PyTorch's symbols of numbers that come with the call
        self.known: dict[fx.Node, Any] = {}  # nodes whose value is there already
        self.draws = 0  # calls so far that draw random numbers

    def run(self, inputs: Sequence[object], required: Iterable[fx.Node] = ()) -> list[Any]:
        """Import all nodes on ``inputs`` (arrays, sizes or None, by placeholder), ``required`` ones although no other
        reads them; the results, in order."""
        incoming, constants = iter(inputs), known_values(self.module)
        read = needs(constants).union(required)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(incoming)
            elif node.op == "get_attr":
                self.values[node] = self._constant(node)
            elif node in constants and node not in read:
                continue  # only other known values read it
            elif node in constants and not is_repeated(node):
                self.values[node] = self.t.graph.add_constant("constant", to_numpy(constants[node]))
            elif node in self.known:
                self.values[node] = self.known[node]
            elif node.op == "call_function":
                self.values[node] = self._evaluate(node)
        return [self._value(x) for x in self.module.graph.output_node().args[0]]

    def _evaluate(self, node: fx.Node) -> object:
        try:
            with self.t.graph.label_nodes(origins=origins(node)):
                return self._call(node)
        except Exception as error:
            note_line(error, line_of(node))
            raise

    def _constant(self, node: fx.Node) -> str:
        value = getattr(self.module, str(node.target))
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"the graph holds {node.target}, a {type(value).__name__}; expected a tensor")
        return self.t.graph.add_constant("constant", to_numpy(value))

    def _call(self, node: fx.Node) -> object:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            is_element = node.target is torch.ops.aten._local_scalar_dense.default
            if is_element and isinstance(value, torch.SymInt) and not self.t.sizes.is_known(value):
                return self._element(node, value)
            if isinstance(value, torch.SymInt) and type(value.node.expr).__name__ in sizes.ROUNDED:
                number = self._number(node, value)
                return NumberArray(self.t.cast(number, types.from_name("int64"))) if isinstance(number, str) else number
            if isinstance(value, torch.SymInt) and any(str(s) in self.floats for s in value.node.expr.free_symbols):
                return Undecided(value.node.expr)
            return self.t.sizes.dim(value)
        if isinstance(value, torch.SymFloat):
            return self._number(node, value)
        if node.target is getitem:
            source, index = node.args
            return self.values[source][index]
        if isinstance(value, torch.SymBool):
            raise Unsupported(f"a size that only the data decides ({getattr(node.target, '__name__', '')}{node.args})")
        if not isinstance(node.target, torch_operators.OpOverload):
            raise Unsupported(f"{node.target} stands in the graph; expected operators of ATen")
        call, operands = self._bind(node, value)
        number = self.t.apply(call, operands)
        return tuple(number) if isinstance(value, (tuple, list)) else number[0]

    def _number(self, node: fx.Node, value: torch.SymFloat | torch.SymInt) -> object:
        """A scalar expression over sizes, or an array where numbers that come with the call are in it."""
        if node.target is torch.ops.aten._local_scalar_dense.default and not self.t.sizes.is_known(value):
            return self._element(node, value)
        double = types.from_name("float64")
        names = [str(s) for s in value.node.expr.free_symbols if str(s) in self.floats]
        if not names:
            return self.t.sizes.number(value) if isinstance(value, torch.SymFloat) else self.t.sizes.dim(value)
        arrays = [self.floats[n] for n in names]
        array = self.t.b.elementwise(
            lambda *e: self.t.sizes.number(value, {n: scalar.cast(x, double) for n, x in zip(names, e)}),
            *map(str, arrays),
            dtype=double,
        )
        return NumberArray(array)

    def _element(self, node: fx.Node, value: torch.SymInt | torch.SymFloat) -> NumberArray:
        """A number that is read out of a tensor: no gradient passes."""
        double, whole = types.from_name("float64"), types.from_name("int64")
        source = self.t.reshape(self.values[node.args[0]], ())
        source = self.t.cast(source, double if isinstance(value, torch.SymFloat) else whole)
        promise = Promise((), self.t.dtype_of(source))
        if isinstance(value, torch.SymFloat) and self.t.graph.producer(source) is not None:
            source = self.t.operator("StopGradient", source, domain="daceopt", results=[promise])
        self.floats[str(value.node.expr)] = element = NumberArray(source)
        return element

    def _bind(self, node: fx.Node, value: object) -> tuple[AtenCall, list[str]]:
        operands: list[str] = []
        fakes: list[torch.Tensor] = []

        def bind_operand(x: object, is_float: bool = False) -> tuple[Any, Any]:
            if isinstance(x, (list, tuple)):
                pairs = [bind_operand(v) for v in x]
                return [p[0] for p in pairs], [p[1] for p in pairs]
            if not isinstance(x, fx.Node):
                return x, x
            value = self.values[x]
            if isinstance(value, Undecided):
                raise Unsupported(f"a whole number that only the data decides ({value.expr})")
            if is_float and isinstance(value, sympy.Expr):
                value = NumberArray(self.t.array(value, types.from_name("float64")))
            if not isinstance(value, str):
                return value, x.meta.get("val", value)
            operands.append(str(value))
            if isinstance(value, NumberArray):
                fakes.append(self._holder(x.meta["val"]))
                return (Item(len(operands) - 1),) * 2
            fakes.append(x.meta["val"] if "val" in x.meta else getattr(self.module, str(x.target)))
            return (Operand(len(operands) - 1),) * 2

        by_argument = by_name(node.target, node.args, node.kwargs)
        pairs = {k: bind_operand(v, takes_float(node.target, k)) for k, v in by_argument.items()}
        arguments, traced = ({k: p[j] for k, p in pairs.items()} for j in (0, 1))
        values = value if isinstance(value, (tuple, list)) else (value,)
        results = tuple(v if isinstance(v, torch.Tensor) else None for v in values)  # sizes are known without it
        marker = node.target is torch.ops.daceopt.with_gradient.default
        backward = self.backwards[arguments["number"]] if marker else None
        position = self.positions[self.draws] if self.draws < len(self.positions) else self.draws
        self.draws += torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        return AtenCall(
            node.target, arguments, traced, tuple(fakes), results, self.t.context, backward, position, line_of(node)
        ), operands

    def _holder(self, number: torch.SymFloat) -> torch.Tensor:
        values = (n.meta.get("val") for n in self.module.graph.nodes)
        return holder_of(number, [next(v for v in values if isinstance(v, FakeTensor))])

    def _value(self, x: object) -> object:
        return self.values[x] if isinstance(x, fx.Node) else x


def origins(node: fx.Node) -> Origins:
    """The path of the module whose ``forward`` called it, where Dynamo has noted one."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = _ROOT.sub("", stack[-1][0]) if stack else ""
    return (path,) if path else ()
