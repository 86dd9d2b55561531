"""Point-wise operators, reductions and what works along one axis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.properties.cases import COMMON, FLOATS, SEEDS, Case, Draw, array, axis_of, broadcast_pair, shapes, some_axes

_EVERYWHERE = """Abs Neg Sign Floor Ceil Round Exp Sin Cos Tanh Sinh Cosh Atan Asinh Erf Sigmoid Relu Elu Selu LeakyRelu
    Softplus Softsign HardSigmoid HardSwish ThresholdedRelu Celu Mish Identity Not IsNaN IsInf Shrink Gelu"""
_UNARY = {
    **dict.fromkeys(_EVERYWHERE.split(), (-4.0, 4.0)),
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal"), (0.01, 9.0)),
    **dict.fromkeys(("Asin", "Acos"), (-1.0, 1.0)),
    "Tan": (-1.4, 1.4),
    "Acosh": (1.01, 9.0),
    "Atanh": (-0.99, 0.99),
}
_INTEGER_TOO = {"Abs", "Neg", "Sign", "Identity"}
_COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_REDUCTIONS = tuple(f"Reduce{n}" for n in "Sum Mean Max Min Prod L1 L2 SumSquare LogSumExp LogSum".split())


@st.composite
def unary(draw: Draw) -> Case:
    op = draw(st.sampled_from(sorted(_UNARY)))
    low, high = _UNARY[op]
    dtype = "bool" if op == "Not" else draw(st.sampled_from(COMMON if op in _INTEGER_TOO else FLOATS[:1]))
    x = array(draw, draw(shapes()), dtype, low, high)
    if op in ("IsNaN", "IsInf") and x.size:
        x.reshape(-1)[:: 1 + draw(st.integers(0, 3))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return Case(op, [x])


@st.composite
def binary(draw: Draw) -> Case:
    op = draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Pow", "Mod", "Max", "Min", "PRelu", *_COMPARISONS]))
    dtype = "float32" if op in ("Pow", "PRelu") else draw(st.sampled_from(COMMON))
    bounds = {"Pow": {"low": 0.1}, "PRelu": {}}.get(op, {})
    a, b = broadcast_pair(draw, dtype, **bounds)
    attributes = {}
    if op == "Mod":
        attributes["fmod"] = int(np.dtype(dtype).kind == "f" or draw(st.booleans()))
    if op in ("Div", "Mod"):
        b = np.where(b == 0, b.dtype.type(3), b)
    if op == "PRelu" and np.broadcast_shapes(a.shape, b.shape) != a.shape:
        a, b = b, a
    return Case(op, [a, b], attributes)


@st.composite
def logical(draw: Draw) -> Case:
    op = draw(st.sampled_from(["And", "Or", "Xor", "Where", "BitwiseAnd", "BitwiseOr", "BitwiseXor"]))
    if op == "Where":
        x, y = broadcast_pair(draw, draw(st.sampled_from(COMMON)))
        condition = array(draw, x.shape if draw(st.booleans()) else y.shape, "bool")
        return Case(op, [condition, x, y])
    return Case(op, broadcast_pair(draw, draw(st.sampled_from(["int32", "uint8"])) if "Bit" in op else "bool"))


@st.composite
def reduction(draw: Draw) -> Case:
    op = draw(st.sampled_from(_REDUCTIONS))
    positive = op in ("ReduceLogSum", "ReduceProd")
    whole = op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceSumSquare")
    dtype = draw(st.sampled_from(["float32", "float64", "int32"] if whole else ["float32"]))
    shape = draw(shapes(0, 4, empty=op in ("ReduceSum",)))
    x = array(draw, shape, dtype, 0.5 if positive else -3.0, 1.5 if positive else 3.0)
    keep, axes = draw(st.integers(0, 1)), some_axes(draw, x.ndim)
    if not axes and draw(st.booleans()):
        return Case(op, [x], {"keepdims": keep})
    noop = draw(st.integers(0, 1)) if op not in ("ReduceLogSum", "ReduceL1", "ReduceL2", "ReduceSumSquare") else 0
    return Case(
        op, [x, np.asarray(axes, np.int64)], {"keepdims": keep, "noop_with_empty_axes": noop}, constants=(1,)
    )  # fmt: skip


@st.composite
def along_axis(draw: Draw) -> Case:
    op = draw(st.sampled_from(["Softmax", "LogSoftmax", "Hardmax", "ArgMax", "ArgMin", "CumSum", "LpNormalization"]))
    x = array(draw, draw(shapes(1, 4, empty=False)), "float32")
    axis = axis_of(draw, x.ndim)
    if op == "CumSum":
        attributes = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
        return Case(op, [x, np.asarray(axis)], attributes, constants=(1,))
    if op == "LpNormalization":
        return Case(op, [x + 5], {"axis": axis, "p": draw(st.integers(1, 2))})
    if op.startswith("Arg"):
        last = draw(st.integers(0, 1))
        return Case(op, [x], {"axis": axis, "keepdims": draw(st.integers(0, 1)), "select_last_index": last})
    return Case(op, [x], {"axis": axis})


@st.composite
def cast(draw: Draw) -> Case:
    source = draw(st.sampled_from(["float32", "float64", "int8", "int32", "int64", "uint8", "bool", "float16"]))
    target = draw(st.sampled_from([1, 2, 3, 5, 6, 7, 9, 10, 11]))
    low = 0.0 if target == 2 else -4.0  # what does not fit an unsigned type is undefined in C
    return Case("Cast", [array(draw, draw(shapes()), source, low)], {"to": target})


@st.composite
def clip(draw: Draw) -> Case:
    dtype = draw(st.sampled_from(COMMON))
    x = array(draw, draw(shapes()), dtype)
    bounds = [None if draw(st.booleans()) else np.asarray(b, dtype) for b in (-2, 2)]
    inputs: list[np.ndarray | None] = [x, *bounds]
    while inputs[-1] is None:
        inputs.pop()
    return Case("Clip", inputs)


@st.composite
def variants(draw: Draw) -> Case:
    """Point-wise operators whose attributes change the formula."""
    op, attributes, opset = draw(st.sampled_from(_VARIANTS))
    x = array(draw, draw(shapes()), "float32", -6.0, 6.0)
    if op == "IsInf" and x.size:
        x.reshape(-1)[::2] = draw(st.sampled_from([np.inf, -np.inf]))
    return Case(op, [x], dict(attributes), opset=opset)


_VARIANTS: list[tuple[str, dict[str, object], int]] = [
    ("Gelu", {"approximate": "tanh"}, 21),
    ("Mish", {}, 21),
    ("Swish", {}, 24),
    ("Swish", {"alpha": 1.702}, 24),
    ("Elu", {"alpha": 0.3}, 21),
    ("Selu", {"alpha": 1.5, "gamma": 2.0}, 21),
    ("Celu", {"alpha": 0.5}, 21),
    ("LeakyRelu", {"alpha": -0.2}, 21),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}, 21),
    ("ThresholdedRelu", {"alpha": 0.5}, 21),
    ("Shrink", {"bias": 0.5, "lambd": 1.0}, 21),
    ("IsInf", {"detect_negative": 0}, 21),
    ("IsInf", {"detect_positive": 0}, 21),
]


@st.composite
def several(draw: Draw) -> Case:
    """Any number of operands that broadcast."""
    op, shape = draw(st.sampled_from(["Max", "Min", "Sum", "Mean"])), draw(shapes(0, 3))
    dtype = draw(st.sampled_from(COMMON)) if op in ("Max", "Min") else "float32"
    operands: list[np.ndarray | None] = []
    for _ in range(draw(st.integers(1, 5))):
        own = tuple(1 if draw(st.booleans()) else n for n in shape)[draw(st.integers(0, len(shape))) :]
        operands.append(array(draw, own, dtype))
        value = operands[-1]
        if value is not None and value.dtype.kind == "f" and value.size and draw(st.integers(0, 5)) == 0:
            value.reshape(-1)[0] = draw(st.sampled_from([np.nan, np.inf]))
    return Case(op, operands)


@st.composite
def bits(draw: Draw) -> Case:
    dtype = draw(st.sampled_from(["uint8", "uint32", "uint64"]))
    if draw(st.booleans()):
        return Case("BitwiseNot", [array(draw, draw(shapes()), draw(st.sampled_from(["int32", "int64", dtype])))])
    x, count = broadcast_pair(draw, dtype, high=1.4)  # shifts of a whole width are not defined
    return Case("BitShift", [x, count], {"direction": draw(st.sampled_from(["LEFT", "RIGHT"]))})


@st.composite
def ties(draw: Draw) -> Case:
    """Few different values, zeros and NaN among them, along one axis."""
    op = draw(st.sampled_from(["Hardmax", "ArgMax", "ArgMin", "LpNormalization", "Softmax", "LogSoftmax"]))
    x = array(draw, draw(shapes(1, 3, empty=False)), "int32", -0.4, 0.4).astype(np.float32)
    axis = axis_of(draw, x.ndim)
    if op.startswith("Arg"):
        return Case(op, [x], {"axis": axis, "select_last_index": draw(st.integers(0, 1))})
    if "max" in op and op != "Hardmax":
        largest = [1, 40] if op == "LogSoftmax" else [1, 40, 1e4, 1e30]  # the evaluator takes the logarithm of 0
        x *= draw(st.sampled_from(largest))
    return Case(op, [x], {"axis": axis, **({"p": draw(st.integers(1, 2))} if op == "LpNormalization" else {})})


@st.composite
def special_values(draw: Draw) -> Case:
    """NaN, infinities and signed zeros through what computes and compares."""
    dtype, shape = draw(st.sampled_from(FLOATS)), draw(shapes(1, 2, empty=False))
    generator = np.random.default_rng(draw(SEEDS))
    a, b = (generator.choice(_SPECIAL, shape).astype(dtype) for _ in range(2))
    op = draw(
        st.sampled_from(
            ["Add", "Mul", "Div", "Max", "Min", "Abs", "Sqrt", "Exp", "Floor", "Round", "Clip", *_COMPARISONS]
        )
    )
    if op == "Clip":
        return Case(op, [a, np.asarray(-1, dtype), np.asarray(1, dtype)])
    return Case(op, [a] if op in _UNARY else [a, b])


_SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 1e15]
