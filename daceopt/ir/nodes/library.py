"""Library nodes: the dense operations that stay one node until a library in ``daceopt.libs`` implements them.

Connectors are named with a capital so that they never meet an array's name, which is lower case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import dace.library
import sympy
from dace.properties import ListProperty, Property, make_properties
from dace.sdfg.graph import generate_element_id
from dace.sdfg.nodes import LibraryNode

from daceopt.errors import DaceoptError
from daceopt.ir.scalar import types
from daceopt.ir.scalar.types import DType

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph

ACTIVATIONS = (None, "relu")
LAYOUTS = ("", "first", "last", "blocked")
IMAGES = frozenset(("X", "Y", "Z", "dX", "dY"))  # operands of convolutions that are no weights


def _ints(description: str) -> Any:
    return ListProperty(element_type=int, default=[], desc=description)


class Expressions(ListProperty):
    """Integer expressions over size symbols."""

    def __init__(self, **options: object):
        super().__init__(element_type=sympy.sympify, default=[], **options)

    def to_json(self, obj: Sequence[object]) -> list[str]:
        return [str(e) for e in obj]


def _activation() -> Any:
    return Property(dtype=str, default=None, allow_none=True, desc="Applied last: None or 'relu'")


def _packed_property() -> Any:
    return Property(
        dtype=bool, default=False, desc="A library may prepare weights once for all calls in which they are the same"
    )


def _held_over_property() -> Any:
    return ListProperty(
        element_type=str,
        default=[],
        desc="Counters of the loops around in which the weights are the same, with ' from ' and the first value where "
        "that is not 0: a library may prepare them in the first iteration",
    )


@make_properties
class DenseNode(LibraryNode):
    """Base of all library nodes: named connectors, attributes as properties, and the cost of one execution."""

    implementations: ClassVar[dict[str, Any]] = {}
    default_implementation: ClassVar[str | None] = None
    required: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ()
    optional_results: ClassVar[tuple[str, ...]] = ()
    computes: ClassVar[bool] = True  # in the types of its operands, which are no types of storage but for
    has_factors: ClassVar[bool] = False  # what it requires, of a narrow type too if the target's libraries take that
    weights: ClassVar[str] = ""  # the operand that ``packed`` and ``held_over`` are about

    def __init__(
        self,
        name: str | None = None,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        **attributes: object,
    ) -> None:
        """Make a node with the given connectors (default: the required ones).

        Raises DaceoptError for a connector or an attribute the node does not have.
        """
        inputs = self.required if inputs is None else tuple(inputs)
        outputs = self.results if outputs is None else tuple(outputs)
        self._check_connectors(inputs, outputs)
        super().__init__(name or type(self).__name__.lower(), inputs=set(inputs), outputs=set(outputs))
        for key, value in attributes.items():
            if key not in self.__properties__:
                raise DaceoptError(
                    f"{type(self).__name__} has no attribute {key!r}, only {sorted(self.__properties__)}"
                )
            setattr(self, key, list(value) if isinstance(value, tuple) else value)
        if getattr(self, "activation", None) not in ACTIVATIONS:
            raise DaceoptError(f"activation {self.activation!r} is not one of {ACTIVATIONS}")

    def __deepcopy__(self, memo: dict[int, Any]) -> DenseNode:
        twin = super().__deepcopy__(memo)
        twin._guid = generate_element_id(twin)
        return twin

    def _check_connectors(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        _check(type(self).__name__, "input", inputs, self.required, self.optional)
        _check(type(self).__name__, "output", outputs, self.results, self.optional_results)

    @property
    def in_place(self) -> Mapping[str, str]:
        """Result -> operand in whose memory it is where that one ends there."""
        return {}

    def operands(self, graph: Graph) -> dict[str, str]:
        """Connector -> array name, inputs and outputs."""
        return {**graph.def_use.reads(self), **graph.def_use.writes(self)}

    def flops(self, graph: Graph) -> sympy.Expr:
        """Additions and multiplications of one execution, an expression over the graph's symbols."""
        raise NotImplementedError

    def bytes(self, graph: Graph) -> sympy.Expr:
        """Bytes read and written by one execution; a broadcast dimension (stride 0) counts once."""
        return sympy.Add(*(_bytes(graph, name) for name in self.operands(graph).values()))


def _check(node: str, kind: str, names: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    missing, unknown = set(required) - set(names), set(names) - set(required) - set(optional)
    if missing or unknown:
        raise DaceoptError(
            f"{node}: {kind} connectors {sorted(names)}; required {list(required)}, optional {list(optional)}, "
            f"missing {sorted(missing)}, unknown {sorted(unknown)}"
        )


def _bytes(graph: Graph, name: str) -> sympy.Expr:
    extents = [n for n, stride in zip(graph.shape(name), graph.strides(name), strict=True) if stride != 0]
    return sympy.Mul(graph.dtype(name).bytes, *extents)


def _size(graph: Graph, name: str) -> sympy.Expr:
    return sympy.Mul(*graph.shape(name))


def is_constant(graph: Graph, name: str) -> bool:
    """Does ``name`` show the same elements of a constant in every call, and in every iteration of loops around?"""
    root, offset = graph.root(name)
    return root in graph.constants and isinstance(offset, int)


def outlasts_calls(graph: Graph, name: str) -> bool:
    """Is ``name`` the same in most calls: a constant, or an input of a program that only infers, which leaves nothing
    for a derivative and changes no argument?"""
    infers = not graph.saved and not graph.replaced
    return is_constant(graph, name) or (infers and graph.root(name)[0] in graph.inputs)


def takes_narrow(node: DenseNode, graph: Graph) -> bool:
    """Whether the node multiplies narrow factors of one type; what it adds and writes has that type or float32."""
    return multiplies(type(node), {c: graph.dtype(n) for c, n in node.operands(graph).items()}, graph)


def narrow_type(node: DenseNode, graph: Graph) -> Any:
    """The narrow type of its other factor to which the node rounds weights of float32 that it keeps; None where it
    does not."""
    if not getattr(node, "packed", False):
        return None
    dtypes = {c: graph.dtype(n) for c, n in node.operands(graph).items()}
    (factor,) = (dtypes[c] for c in node.required if c != node.weights)
    rounds = dtypes[node.weights] == dace.float32 and multiplies(type(node), dtypes | {node.weights: factor}, graph)
    return factor if rounds else None


def multiplies(cls: type[DenseNode], dtypes: Mapping[str, DType], graph: Graph) -> bool:
    """:func:`takes_narrow` for a node with operands of these types."""
    factors = {dtypes[c] for c in cls.required}
    is_narrow = cls.has_factors and len(factors) == 1 and factors <= set(graph.options.factors)
    return is_narrow and set(dtypes.values()) <= {*factors, dace.float32}


def may_write(node: DenseNode, connector: str, dtype: DType, graph: Graph) -> bool:
    """May a node with narrow factors write this result in another type, of the numbers that it has summed up?

    What it would have been rounded to before is left out only where that is no more than a rounding: infinities of
    float16 are finite in float32, and what a scaler of gradients looks for.
    """
    dtypes = {c: graph.dtype(n) for c, n in node.operands(graph).items()}
    able = multiplies(type(node), dtypes | {connector: dtype}, graph)
    return able and types.has_range(dtypes[connector], dtype)


@dace.library.node
class Contraction(DenseNode):
    """Batched matrix product: ``Y = activation(alpha * A @ B + Bias + C)``.

    A: [..., M, K]; B: [..., K, N]; leading dimensions broadcast as in NumPy; Y: [..., M, N].
    Bias: any shape that broadcasts to Y ([N], [M, 1], ...); C (residual): the shape of Y. Any strides; one dtype, or
    factors of a narrow type that libraries of the target multiply (``BuildOptions.factors``; then the others have that
    type or float32; B, where ``packed``, may have float32, too, and is rounded).
    """

    required, optional, results = ("A", "B"), ("Bias", "C"), ("Y",)
    has_factors = True
    weights = "B"
    alpha = Property(dtype=float, default=1.0, desc="Factor of the product")
    activation = _activation()
    held_over = _held_over_property()
    packed = _packed_property()

    def flops(self, graph: Graph) -> sympy.Expr:
        """Two per element of the result and of the contracted dimension."""
        names = self.operands(graph)
        return 2 * _size(graph, names["Y"]) * graph.shape(names["A"])[-1]


@make_properties
class _Window(DenseNode):
    """What convolutions and pools share; ``pads`` holds all begins, then all ends, as in ONNX."""

    def window(self, rank: int) -> tuple[list[int], list[int], list[int], list[int]]:
        """(strides, dilations, pads at the begin, pads at the end) for ``rank`` spatial dimensions, with defaults."""
        strides, dilations = list(self.strides) or [1] * rank, list(self.dilations) or [1] * rank
        pads = list(self.pads) or [0] * (2 * rank)
        for name, value, length in (
            ("strides", strides, rank),
            ("dilations", dilations, rank),
            ("pads", pads, 2 * rank),
        ):
            if len(value) != length:
                raise DaceoptError(f"{self.name}: {name} has {len(value)} entries, expected {length}")
        return strides, dilations, pads[:rank], pads[rank:]


@make_properties
class ConvolutionBase(_Window):
    """What convolutions share, in all three passes and of 8-bit operands."""

    strides = _ints("Step of the window per spatial dimension")
    pads = _ints("Zeros added: begins, then ends")
    dilations = _ints("Distance of the kernel's elements per spatial dimension")
    group = Property(dtype=int, default=1, desc="Channel groups")
    layout = Property(
        dtype=str,
        default="",
        choices=list(LAYOUTS),
        desc="Layout of images inside; '': the library's choice",
    )
    has_factors: ClassVar[bool] = True
    _result: ClassVar[str] = "Y"
    _weight: ClassVar[str] = "W"

    def spatial(self, graph: Graph) -> int:
        """Number of spatial dimensions."""
        return len(graph.shape(self.operands(graph)[self._weight])) - 2

    def blocked_connectors(self, graph: Graph) -> frozenset[str]:
        """Connectors of images that are in blocks of channels: they have one dimension more than weights."""
        rank, names = self.spatial(graph) + 3, self.operands(graph)
        return frozenset(c for c in IMAGES & names.keys() if len(graph.shape(names[c])) == rank)

    def flops(self, graph: Graph) -> sympy.Expr:
        """Two per output element and weight that contributes to it; equal for the three passes."""
        names = self.operands(graph)
        return 2 * _size(graph, names[self._result]) * sympy.Mul(*graph.shape(names[self._weight])[1:])


@dace.library.node
class Convolution(ConvolutionBase):
    """Cross-correlation: ``Y = activation((conv(X, W) + B) * S + T + Z)``, of which S is 1 where it is not given.

    X: [N, C, d...] (1 to 3 spatial dimensions); W: [O, C/group, k...]; B, S and T: [O]; Z and Y: [N, O, e...].
    The arrays' strides are the physical layout (channels first or last). X, Z and Y, and their gradients below, may
    also stand in blocks of b channels: [N, C/b, d..., b] in rows (``ir/nodes/blocked.py``), each as it is.

    A relu multiplies what is below 0 by ``slope`` and gives at most ``ceiling``. ``doubtful``: it may make NaN of -inf;
    whatever that reaches, a :class:`NanWatch` looks at. ``accumulating``: Y may be summed up in the memory of Z.
    One dtype, or narrow factors as of a :class:`Contraction`; W, where ``packed``, may have float32 beside these, and
    is rounded.
    """

    required, optional, results = ("X", "W"), ("B", "S", "T", "Z"), ("Y",)
    weights = "W"
    activation = _activation()
    slope = Property(dtype=float, default=0.0, desc="What a relu multiplies numbers below 0 by")
    ceiling = Property(dtype=float, default=math.inf, desc="What a relu gives for larger numbers")
    doubtful = Property(dtype=bool, default=False, desc="NaN may stand for what -inf becomes, until a careful run")
    accumulating = Property(dtype=bool, default=False, desc="Y may stand where Z does, if nothing reads Z after it")
    held_over = _held_over_property()
    packed = _packed_property()

    @property
    def in_place(self) -> Mapping[str, str]:
        """Y in the memory of Z, where that pays."""
        return {"Y": "Z"} if self.accumulating else {}


@dace.library.node
class ConvolutionBackwardData(ConvolutionBase):
    """Gradient of a convolution for its input. dY: [N, O, e...]; W: [O, C/group, k...]; dX: [N, C, d...]."""

    required, results = ("dY", "W"), ("dX",)
    weights = "W"
    _result = "dY"
    held_over = _held_over_property()
    packed = _packed_property()


@dace.library.node
class ConvolutionBackwardWeights(ConvolutionBase):
    """Gradient of a convolution for its weights.

    X: [N, C, d...]; dY: [N, O, e...]; dW: [O, C/group, k...].
    """

    required, results = ("X", "dY"), ("dW",)
    _result, _weight = "dY", "dW"


@make_properties
class _PoolBase(_Window):
    kind = Property(dtype=str, default="max", choices=["max", "average"], desc="max or average")
    kernel = _ints("Size of the window per spatial dimension")
    strides = _ints("Step of the window per spatial dimension")
    pads = _ints("Padding: begins, then ends; never the maximum")
    dilations = _ints("Distance of the window's elements per spatial dimension")
    count_include_pad = Property(dtype=bool, default=False, desc="Average: padding counts in the divisor")
    ceil_mode = Property(dtype=bool, default=False, desc="Windows may begin inside and end outside of the padded input")
    _result: ClassVar[str] = "Y"

    def flops(self, graph: Graph) -> sympy.Expr:
        """One per element of each window."""
        return _size(graph, self.operands(graph)[self._result]) * sympy.Mul(*self.kernel)


@dace.library.node
class Pool(_PoolBase):
    """Max or average over windows. X: [N, C, d...]; Y: [N, C, e...].

    Workspace (max only, for the backward pass): the shape of Y, dtype ``workspace_dtype()``; the row-major
    position of the maximum within its window.
    """

    required, results, optional_results = ("X",), ("Y",), ("Workspace",)

    def workspace_dtype(self) -> dace.typeclass:
        """uint8 for windows of at most 256 elements, else int32."""
        return dace.uint8 if int(sympy.Mul(*self.kernel)) <= 256 else dace.int32


@dace.library.node
class PoolBackward(_PoolBase):
    """Gradient of a pool. dY: [N, C, e...]; Workspace: as written by ``Pool`` (max only); dX: [N, C, d...]."""

    required, optional, results = ("dY",), ("Workspace",), ("dX",)
    _result = "dY"


@dace.library.node
class IndexAdd(DenseNode):
    """Rows scattered with addition: ``dW = 0; dW[Index[i]] += dY[i]``.

    Index: any shape S, int32 or int64, negative entries count from the end; dY: [S..., row...]; dW: [V, row...].
    An index outside of [-V, V) makes the run report an error; ``sure``: another node has looked at the indices before.
    """

    sure = Property(dtype=bool, default=False, desc="Another node of the graph reports wrong indices")
    wants_rows = True

    required, results = ("Index", "dY"), ("dW",)

    def flops(self, graph: Graph) -> sympy.Expr:
        """One addition per element of dY."""
        return _size(graph, self.operands(graph)["dY"])


@dace.library.node
class GroupedProduct(DenseNode):
    """Products of groups of rows, each with a matrix of its own, as experts multiply their tokens.

    Ends: [G], int32 or int64; group g has the rows from Ends[g - 1] (0 for the first) up to Ends[g]. A: [S, K];
    B: [G, K, N]; Y: [S, N], 0 in rows behind the last group. ``inner``: B: [S, N]; Y: [G, K, N], the sums A^T B over
    the rows of each group. Ends that decrease, or exceed S, make the run report an error.
    """

    inner = Property(dtype=bool, default=False, desc="The groups are of rows that are summed over")

    required, results = ("A", "B", "Ends"), ("Y",)

    def flops(self, graph: Graph) -> sympy.Expr:
        """A multiplication and an addition for each element of A and column of B."""
        names = self.operands(graph)
        return 2 * _size(graph, names["A"]) * graph.shape(names["B"])[-1]


@dace.library.node
class NanWatch(DenseNode):
    """Where X has a NaN, all that was computed is computed again, carefully: without what makes NaN of other numbers.

    ``Seen``: int32 [1], 1 where the run is in doubt. X: any shape without gaps, float32.
    """

    required, results = ("X",), ("Seen",)
    has_side_effects_ = True

    def flops(self, graph: Graph) -> sympy.Expr:
        """A comparison per element."""
        return _size(graph, self.operands(graph)["X"])


@dace.library.node
class HostCall(DenseNode):
    """A Python function called with the operands' memory.

    ``callback`` is ``"package.module:function"``, called as ``function(payload, inputs, outputs)``: a string and two
    lists of numpy arrays without copies, in the order In0, In1, ..., Out0, Out1, ...; it writes the outputs. Values
    of ``sizes``, if there are any, follow the inputs as one more array, int64.
    """

    callback = Property(dtype=str, default="", desc="package.module:function")
    payload = Property(dtype=str, default="", desc="Handed to the callback as it is")
    sizes = Expressions(desc="Numbers that follow from sizes alone, which the callback gets as well")
    computes: ClassVar[bool] = False  # the callback gets arrays of any type

    @classmethod
    def connectors(cls, inputs: int, outputs: int) -> tuple[list[str], list[str]]:
        """The connector names of a call with so many operands."""
        return [f"In{i}" for i in range(inputs)], [f"Out{i}" for i in range(outputs)]

    def _check_connectors(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        expected = self.connectors(len(inputs), len(outputs))
        if (sorted(inputs), sorted(outputs)) != (sorted(expected[0]), sorted(expected[1])):
            raise DaceoptError(f"HostCall: connectors {list(inputs)} -> {list(outputs)}, expected {expected}")

    def flops(self, graph: Graph) -> sympy.Expr:
        """Unknown: counted as none."""
        return sympy.Integer(0)
