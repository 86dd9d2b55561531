"""The table of operators, generated from what is registered and from the standard's schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ops import registry
from daceopt.ops.operator import schema_of

OLDEST_OPSET = 7
NATIVE, LOWERED, FALLBACK = "native", "lowered", "fallback"


class Coverage(NamedTuple):
    """One line of the table.

    ``versions``: the schemas in force from opset 7 on. ``how``: ``native`` (a lowering of its own), ``lowered``
    (becomes the operators of its function body) or ``fallback``. ``types``: element types of its main operand that are
    compiled; ``refused``: the numeric ones that the standard allows besides. ``gradient``: ``rule``, ``derived`` (from
    the lowering) or "".
    """

    op_type: str
    domain: str
    versions: tuple[int, ...]
    how: str
    types: tuple[str, ...]
    refused: tuple[str, ...]
    gradient: str


def coverage() -> list[Coverage]:
    """One line per operator of the default domain (deprecated ones only if native) and per operator of others."""
    import onnx.defs

    names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    return [_line(domain, op_type) for domain, op_type in sorted({("", n) for n in names} | set(registry.lowered()))]


def counts(rows: Iterable[Coverage]) -> dict[str, int]:
    """How many operators of the default domain there are of each kind."""
    found = dict.fromkeys((NATIVE, LOWERED, FALLBACK), 0)
    for row in rows:
        if not row.domain:
            found[row.how] += 1
    return found


def _line(domain: str, op_type: str) -> Coverage:
    schema = schema_of(op_type, domain)
    standard = allowed(op_type, domain)
    how = _how(domain, op_type) if standard or schema is None else FALLBACK  # over text and sequences only
    accepted = registry.accepted_types(op_type, domain)
    compiled = [t for t in standard or accepted if how != FALLBACK and {t, types.computed(t)} & set(accepted)]
    refused = [t for t in standard if t not in compiled]
    smooth = any(map(types.is_float, compiled)) and (schema is None or _takes_and_gives_floats(schema))
    return Coverage(
        op_type, domain, _versions(op_type, domain), how, _names(compiled), _names(refused),
        registry.how_differentiated(op_type, domain) if smooth else "",
    )  # fmt: skip


def _how(domain: str, op_type: str) -> str:
    if registry.has_lowering(op_type, domain):
        return NATIVE
    return LOWERED if registry.supported(op_type, domain) else FALLBACK


def _takes_and_gives_floats(schema: Any) -> bool:
    return all(any("tensor(float)" in o.types for o in side) for side in (schema.inputs, schema.outputs))


def _names(dtypes: Iterable[types.DType]) -> tuple[str, ...]:
    return tuple(types.name_of(t) for t in dtypes)


def _versions(op_type: str, domain: str) -> tuple[int, ...]:
    import onnx.defs

    every = sorted({s.since_version for s in onnx.defs.get_all_schemas_with_history() if _is(s, op_type, domain)})
    older = [v for v in every if v <= OLDEST_OPSET]
    return tuple(every if domain else [*older[-1:], *(v for v in every if v > OLDEST_OPSET)])


def _is(schema: Any, op_type: str, domain: str) -> bool:
    return bool(schema.name == op_type and schema.domain == domain)


def main_operand(schema: Any) -> Any:
    """The schema's first operand that may have several element types, else its first one."""
    operands = [*schema.inputs, *schema.outputs]
    return next((o for o in operands if len(o.types) > 1), operands[0])


def allowed(op_type: str, domain: str = "") -> list[types.DType]:
    """The element types, without text and complex numbers, that the newest schema allows for the main operand."""
    schema = schema_of(op_type, domain)
    found = []
    for text in sorted(main_operand(schema).types) if schema is not None else ():
        try:
            found.append(types.from_name(_ONNX_NAMES.get(text, text)))
        except Unsupported:
            continue  # strings, complex numbers, sequences
    return sorted(found, key=types.ALL.index)


_ONNX_NAMES = {
    f"tensor({onnx})": name
    for onnx, name in {
        **{types.name_of(t): types.name_of(t) for t in types.DTYPES},
        "float": "float32",
        "double": "float64",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "float8e4m3fn": "float8_e4m3fn",
        "float8e4m3fnuz": "float8_e4m3fnuz",
        "float8e5m2": "float8_e5m2",
        "float8e5m2fnuz": "float8_e5m2fnuz",
        "float8e8m0": "float8_e8m0fnu",
        "float4e2m1": "float4_e2m1fn",
        "float6e2m3": "float6_e2m3fn",
        "float6e3m2": "float6_e3m2fn",
        **{n: n for n in ("int4", "uint4", "int2", "uint2")},
    }.items()
}
