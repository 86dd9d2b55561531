"""Size expressions that stand as text in a program's records."""

from __future__ import annotations

import pytest

from daceopt.runtime.arithmetic import evaluate, names


def test_names_of_an_expression_are_what_its_value_needs():
    text = "Max(s0, 2*s1 - 1) + floor(s3/2)"
    assert names(text) == {"s0", "s1", "s3"}
    assert evaluate(text, {"s0": 1, "s1": 4, "s3": 5}) == 9
    with pytest.raises(KeyError):
        evaluate(text, {"s0": 1})
