"""Which sources of ours a program will call, told by its operators: they compile while the recipe still runs.

A guess, by what the plain node of a kind goes to: a wrong one costs time of an idle core, a missing one is compiled
with the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from daceopt.codegen import ahead
from daceopt.codegen.compiler import CompileJob
from daceopt.cost.limits import assumed_limits
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operator import Operator
from daceopt.ir.nodes.library import Contraction, Convolution, Pool
from daceopt.ir.scalar.types import DType
from daceopt.libs import convolution_times, onednn
from daceopt.libs.base import choose

if TYPE_CHECKING:
    from daceopt.ir.nodes.library import DenseNode

_RECURRENT = ("LSTM", "GRU", "RNN")
_PRODUCTS = ("Gemm", "MatMul", "Einsum", "Attention", *_RECURRENT)
_MATRIX, _IMAGES = (32, 32), (2, 32, 3, 3)

Sample = tuple["DenseNode", Graph]


def anticipate(graph: Graph) -> None:
    """Start to compile what the operators of ``graph`` will call."""
    ahead.start(tuple(dict.fromkeys(_jobs(graph))))


def _jobs(graph: Graph) -> Iterator[CompileJob]:
    for node in graph.nodes():
        if isinstance(node, Operator):
            for make in _SAMPLES.get(node.op_type, ()):
                for name in graph.inputs_of(node)[:1]:
                    yield from _jobs_of(make, graph.dtype(name)) if name is not None else ()


@cache
def _jobs_of(make: Callable[[DType], Sample], dtype: DType) -> tuple[CompileJob, ...]:
    node, graph = make(dtype)
    try:
        library = choose(node, graph)
    except Unsupported:  # a type that no library has
        return ()
    measured = library.name == onednn.OneDnn.name and assumed_limits() is None
    return (*library.requirements(node, graph).jobs, *(convolution_times.jobs() if measured else ()))


def _product(dtype: DType, **properties: Any) -> Sample:
    return _plain(Contraction(**properties), dtype, "AB", _MATRIX)


def _convolution(dtype: DType) -> Sample:
    return _plain(Convolution(pads=[1] * 4), dtype, "XW", _IMAGES)


def _pool(dtype: DType) -> Sample:
    return _plain(Pool(kernel=[3, 3], pads=[1] * 4), dtype, "X", _IMAGES)


def _plain(node: DenseNode, dtype: DType, reads: str, shape: tuple[int, ...]) -> Sample:
    graph = Graph("sample")
    graph.add_node(
        node, {c: graph.add_array(c, shape, dtype) for c in reads}, {"Y": graph.add_array("Y", shape, dtype)}
    )
    return node, graph


_held = partial(_product, held_over=["loop"])
_SAMPLES: dict[str, tuple[Callable[[DType], Sample], ...]] = {
    **dict.fromkeys(_PRODUCTS, (_product,)),
    **dict.fromkeys(_RECURRENT, (_product, _held)),
    **dict.fromkeys(("Conv", "ConvTranspose"), (_convolution,)),
    **dict.fromkeys(("MaxPool", "AveragePool"), (_pool,)),
}
"""What operators become, by their names."""
