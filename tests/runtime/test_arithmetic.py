"""Size expressions that stand as text in a program's records."""

from __future__ import annotations

import pytest

from daceopt.runtime.arithmetic import check, evaluate, names


def test_names_of_an_expression_are_what_its_value_needs():
    text = "Max(s0, 2*s1 - 1) + floor(s3/2)"
    assert names(text) == {"s0", "s1", "s3"}
    assert evaluate(text, {"s0": 1, "s1": 4, "s3": 5}) == 9
    with pytest.raises(KeyError):
        evaluate(text, {"s0": 1})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("PowByNatural(2, 3*s0 - 1)", 2**14),
        ("CeilToInt(IntTrueDiv(s0, 3))", 2),
        ("FloorToInt(FloatTrueDiv(ToFloat(-s0), 3.0))", -2),
        ("TruncToInt(IntTrueDiv(-s0, 3))", -1),
        ("RoundToInt(IntTrueDiv(s0, 2))", 2),
        ("TruncToInt(TruncToFloat(OpaqueUnaryFn_sqrt(s0)))", 2),
        ("LShift(s0, 2) + RShift(s0, 1) + CeilDiv(s0, 2) + CleanDiv(s0, 5)", 26),
        ("BitwiseFn_bitwise_and(s0, 6) + BitwiseFn_bitwise_or(s0, 2) + BitwiseFn_bitwise_xor(s0, 1)", 15),
    ],
)
def test_what_python_computes_of_whole_numbers(text, value):
    check(text)
    assert evaluate(text, {"s0": 5}) == value


def test_what_is_no_arithmetic_is_refused():
    for text in ("Eq(s0, 1)", "s0.real", "s0 if s0 else 1"):
        with pytest.raises(ValueError, match="expected arithmetic over sizes"):
            check(text)


@pytest.mark.parametrize(
    "text", ("s0**(10**9)", "(1/s0)**(10**9)", "PowByNatural(s0, 10**9)", "LShift(s0, 10**9)", "s0**(-1)")
)
def test_no_text_makes_a_number_without_bound(text):
    with pytest.raises(ValueError, match="expected an exponent"):
        evaluate(text, {"s0": 5})


def test_powers_of_one_have_any_exponent():
    assert evaluate("PowByNatural(s0, 10**9)", {"s0": 1}) == 1
    with pytest.raises(ValueError, match="OverflowError"):
        evaluate("FloatPow(s0, 10**9)", {"s0": 5})
