"""Comparisons and logic."""

from __future__ import annotations

from daceopt.ir import scalar
from daceopt.ops.registry import ANY, BOOL, NUMBERS, elementwise

elementwise("Equal", scalar.eq, types=ANY)
elementwise("Less", scalar.lt, types=NUMBERS)
elementwise("LessOrEqual", scalar.le, types=NUMBERS)
elementwise("Greater", scalar.gt, types=NUMBERS)
elementwise("GreaterOrEqual", scalar.ge, types=NUMBERS)
elementwise("And", scalar.logical_and, types=BOOL)
elementwise("Or", scalar.logical_or, types=BOOL)
elementwise("Xor", scalar.logical_xor, types=BOOL)
