"""The calls that stand for the loops of a tile: pointers to where they begin, sizes, and steps from row to row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import dace

from daceopt.codegen.accumulator import Accumulator
from daceopt.codegen.c_tree import Expression
from daceopt.codegen.names import Names
from daceopt.ir.access.references import Reference
from daceopt.ir.legality.microkernels import Tile, TileProduct, TileTransposition
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule.schedule import Param

# C (+)= A @ B, with as many rows, columns and summands, and the steps from row to row (of a turned B, from column to
# column); a library has it (libs/base.py). By the type of the factors, and by whether B is turned.
_MICROKERNELS = {
    (dace.float32, False): "daceopt_product_float",
    (dace.float64, False): "daceopt_product_double",
    (types.BFLOAT16, False): "daceopt_product_bfloat16",
    (types.BFLOAT16, True): "daceopt_product_bfloat16_turned",
}
_DECLARATION = (
    'extern "C" void {name}(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const {factor}*, '
    "const {factor}*, {sum}*);\n"
)


def declarations(tiles: Iterable[Tile]) -> str:
    """Of the micro-kernels that are called for ``tiles``."""
    used = {(p.dtype, p.turned): p for p in tiles if isinstance(p, TileProduct)}
    return "".join(
        sorted(
            _DECLARATION.format(
                name=_MICROKERNELS[kind], factor=types.cpp(p.dtype), sum=types.cpp(types.compute_type(p.dtype))
            )
            for kind, p in used.items()
        )
    )


def call_of(names: Names, tile: Tile, sizes: Sequence[str], collector: Accumulator | None) -> Expression:
    """The statement that does the work of ``tile``, whose loops have ``sizes``; a product is added to ``collector``."""
    if isinstance(tile, TileTransposition):
        return Expression(_transposition(names, tile, sizes))
    return Expression(_product(names, tile, sizes, collector))


def _transposition(names: Names, tile: TileTransposition, sizes: Sequence[str]) -> str:
    loops = {loop.param for loop in tile.loops}
    operands = []
    for reference, rows in ((tile.source, tile.n), (tile.target, tile.m)):
        operands += [_start_of(names, reference, loops), names.size_text(reference.step(rows.param) or 0)]
    return f"dop::transposed({', '.join([*sizes, *operands])})"


def _product(names: Names, product: TileProduct, sizes: Sequence[str], collector: Accumulator | None) -> str:
    loops = {loop.param for loop in product.loops if loop is not None}
    a, b, c = (_start_of(names, r, loops) for r in (product.a, product.b, product.c))
    leading = [product.leading(r) for r in (product.a, product.b, product.c)]
    if collector is not None:
        c, leading[2] = _collector_tile(names, collector, product)
    steps = ", ".join(map(names.size_text, leading))
    name, add = _MICROKERNELS[product.dtype, product.turned], "true" if collector is not None else "false"
    return f"{name}({', '.join(sizes)}, {steps}, {add}, {a}, {b}, {c})"


def _start_of(names: Names, reference: Reference, loops: Set[Param]) -> str:
    """Where the operand is as its loops begin."""
    steps = tuple((p, step) for p, step in reference.steps if p not in loops)
    return f"&{names.element(replace(reference, steps=steps))}"


def _collector_tile(names: Names, a: Accumulator, product: TileProduct) -> tuple[str, Dim]:
    """The tile's first element in an accumulator, and the step from row to row."""
    rows = {loop.param for loop in product.loops if loop is not None}
    terms, step, stride = ["0"], dim(1), dim(1)
    for loop in reversed(a.dims):
        if product.m is not None and loop.param == product.m.param:
            stride = step
        if loop.param not in rows:
            terms.append(f"{names.size_text(step)} * {names.loop(loop.param)}")
        step = dim(step * loop.extent)
    base = f"{a.name}[{' + '.join(terms)}]" if a.dims or a.private else a.name
    return f"&{base}", stride
