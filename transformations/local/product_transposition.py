"""Let a product write its result in the layout in which it is wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.access.dataflow import address
from daceopt.ir.fusion.conversions import only_converts
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction, may_write, takes_narrow
from daceopt.ir.scalar.dims import row_major
from daceopt.passes.transform import NearMiss, Site, Transformation


@dataclass(frozen=True)
class ProductTransposition(Transformation):
    """Turn the copy of a transposed product into the product of the transposes.

    before:  y = Contraction(A, B)    t = transpose(y) (a view)    z = copy(t)
    after:   z = Contraction(transpose(B), transpose(A))

    A copy that converts is the product's as well, where its factors are narrow and its sums are float32; of a product
    that may not write that type it becomes a conversion that stands as the product does.

    Weight gradients have this form: PyTorch keeps a linear layer's weight as (out, in) and multiplies by its transpose.
    """

    level: ClassVar[str] = "local"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        if not isinstance(node, Contraction) or set(graph.reads(node)) != {"A", "B"} or node.activation is not None:
            return
        product = graph.writes(node)["Y"]
        if graph.is_part(product):
            return
        readers = graph.all_consumers(product)
        if len(readers) != 1 or not isinstance(readers[0], KernelNode) or graph.is_kept(product):
            return
        target = _transposing_copy(graph, node, product, readers[0])
        if target is not None:
            yield Site(graph, (node, readers[0]), {"out": target})

    def apply(self, site: Site) -> None:
        graph, (node, copy) = site.graph, site.nodes
        reads, dtype, out = graph.reads(node), graph.dtype(graph.writes(node)["Y"]), site["out"]
        left, right = _transpose(graph, reads["B"]), _transpose(graph, reads["A"])
        whole = graph.dtype(out) == dtype or may_write(node, "Y", graph.dtype(out), graph)
        graph.remove(node)
        graph.remove(copy)
        product = out if whole else graph.add_array(node.label, graph.shape(out), dtype)
        graph.add_node(Contraction(node.label, alpha=node.alpha), {"A": left, "B": right}, {"Y": product})
        if not whole:
            Builder(graph, node.label).cast(product, graph.dtype(out), out=out)


def _transpose(graph: Graph, name: str) -> str:
    """A view with the last two dimensions exchanged."""
    shape, strides = graph.shape(name), graph.strides(name)
    swap = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return graph.add_view(name, "transposed", [shape[k] for k in swap], [strides[k] for k in swap])


def _transposing_copy(graph: Graph, node: Contraction, product: str, copy: KernelNode) -> str | None:
    """The array that ``copy`` fills with the product, its last two dimensions exchanged, if it does nothing else."""
    kernel = copy.kernel
    stage = kernel.stages[0]
    if len(kernel.stages) != 1 or len(stage.reads) != 1 or len(stage.writes) != 1:
        return None
    (read,), (write,) = stage.reads.values(), stage.writes.values()
    shape, out = graph.shape(product), write.array
    transposed = (*shape[:-2], shape[-1], shape[-2])
    if write.wcr or not _passes(graph, node, stage, out) or graph.shape(out) != transposed:
        return None
    if not graph.is_contiguous(out):
        return None
    source, target = address(graph, read), address(graph, write)
    if source is None or target is None or source.constant != 0 or target.constant != 0:
        return None
    steps = row_major(shape)
    expected = dict(
        zip((*steps[:-2], steps[-1], steps[-2]), row_major(transposed))
    )  # stride in the product -> in the copy
    coefficients = target.coefficients()
    strides = source.coefficients()  # a broadcast row has fewer parameters than the copy
    same = set(strides) == set(coefficients) and all(coefficients[p] == expected.get(c) for p, c in strides.items())
    return out if same and graph.is_contiguous(product) else None


def _passes(graph: Graph, node: Contraction, stage: Stage, out: str) -> bool:
    """Whether the copy writes what it reads, or converts the product of narrow factors."""
    product = graph.writes(node)["Y"]
    if graph.dtype(out) == graph.dtype(product):
        return stage.copy is not None
    return takes_narrow(node, graph) and only_converts(graph, stage)
