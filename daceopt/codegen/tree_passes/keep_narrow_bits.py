"""Elements of a storage type that go from one array to another as they are.

before:  v0 = dop::float16::load(p0[i0]); p1[i0] = dop::float16::store(v0);
after:   v0 = dop::float16::load(p0[i0]); v0_bits = p0[i0]; p1[i0] = v0_bits;

gcc converts a half by integers, in both directions, and keeps neither away; what nothing reads any more it drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daceopt.codegen.c_tree import Assign, Declare, ElementLoad, Expr, Name, Statement, Stored
from daceopt.ir.scalar import types


def keep_narrow_bits(statements: Sequence[Statement]) -> list[Statement]:
    """``statements`` whose stores keep the bits of what they load of the same type."""
    declared = {s.name: s for s in statements if isinstance(s, Declare) and s.type == "float"}
    bits: dict[str, Declare] = {}  # value -> what declares its bits
    stored = [_keeping(s, declared, bits) for s in statements]
    return [part for s in stored for part in ((s, bits[s.name]) if isinstance(s, Declare) and s.name in bits else (s,))]


def _keeping(statement: Statement, declared: dict[str, Declare], bits: dict[str, Declare]) -> Statement:
    if not isinstance(statement, Assign) or not isinstance(statement.value, Stored):
        return statement
    dtype = statement.value.dtype
    source = _source(statement.value.value, declared) if types.is_narrow(dtype) else None
    if source is None or not isinstance(source.value, ElementLoad) or source.value.dtype != dtype:
        return statement
    pattern = Declare("auto", f"{source.name}_bits", source.value.element, const=True, uses=source.uses)
    bits[source.name] = pattern
    return replace(statement, value=pattern.name)


def _source(value: Expr, declared: dict[str, Declare]) -> Declare | None:
    """What declares a value, behind copies of it."""
    source = declared.get(value.name) if isinstance(value, Name) else None
    return _source(source.value, declared) if source is not None and isinstance(source.value, Name) else source
