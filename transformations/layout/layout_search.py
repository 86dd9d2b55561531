"""Choose the layouts of intermediates for a whole network, by an integer program over what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.blocked import CONVOLUTIONS, block
from daceopt.ir.nodes.quantized import QuantizedConvolution
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.transformations.layout._layout_costs import LAST, POOLS, Reading, read
from daceopt.transformations.layout._layout_program import Choice, NodeAccesses

WORTH = 0.02  # of the time that convolutions and reorders take, as measured: less than that is noise


@dataclass(frozen=True)
class LayoutSearch(Transformation):
    """Store images row by row or with their channels innermost, whichever makes the network fastest.

    before:  y: (N, C, H, W) strides (CHW, HW, W, 1) = Convolution(x, w)
    after:   y: (N, C, H, W) strides (HWC, 1, WC, C) = Convolution(x, w)

    Libraries convolve images with channels innermost, and copy others; kernels lose where they walk across memory;
    inputs and outputs have the layout that their user gave them. Costs are bytes at this machine's rates. Only strides
    change: shapes and indices stay, views follow, and an array that a view cannot follow keeps its layout (Rausch et
    al., DaCeML, section 5.4).

    ``blocked``: images may also be in blocks of channels (16, or 8 where vectors are short), as arrays of one
    dimension more that kernels and convolutions read and write as they are:

    before:  y: (N, C, H, W) = Convolution(x, w)                   z[n, c, h, w] = max(y[n, c, h, w], 0)
    after:   y: (N, C/16, H, W, 16) = Convolution(x, w; blocked)   z[n, b, h, w, k] = max(y[n, b, h, w, k], 0)

    Convolutions then take as long as this machine takes for their shape in each layout, which is measured once
    (``libs/convolution_times.py``); where blocks do not save 2 % of their time, images stand as without, and each
    convolution works in the layout of its images, or in a faster one.
    """

    level: ClassVar[str] = "layout"
    sites_are_independent: ClassVar[bool] = True
    blocked: bool = True

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        users = [node for node in graph.nodes() if isinstance(node, (*CONVOLUTIONS, QuantizedConvolution, *POOLS))]
        if not users or any(getattr(node, "layout", "") for node in users):  # nothing to search, or searched already
            return
        reading = read(graph)
        choice = reading.problem.solve()
        wide = read(graph, measured=True) if self.blocked else None
        if wide is None or not wide.calls:
            yield from _moves(graph, reading, choice)
            return
        own = {name: choice.get(name, 0) for name in wide.known}
        better = _better(wide, own)
        yield from _moves(graph, reading, choice) if better is None else _moves(graph, wide, better)
        yield from _calls(graph, wide, own if better is None else better)

    def apply(self, site: Site) -> None:
        for node, mode in site.found.get("modes", {}).items():
            node.layout = mode
        block(site.graph, site.found.get("blocks", ()))
        for name, strides in site.found.get("strides", {}).items():
            site.graph.set_strides(name, strides)


def _better(wide: Reading, own: Choice) -> Choice | None:
    """The layouts that are best as measured, if they are better by enough than ``own``."""
    seconds = wide.problem.seconds
    solution, plain = wide.problem.solve(), min(wide.problem.uniform(), key=seconds)
    solution = solution if seconds(solution) < (1 - WORTH) * seconds(plain) else plain  # one layout is what fuses best
    before = seconds(own) + sum(_leave_to_library(walk, own) for walk in wide.calls.values())
    return solution if seconds(solution) < (1 - WORTH) * before else None


def _leave_to_library(walk: NodeAccesses, choice: Choice) -> float:
    """What a convolution takes longer than in its best layout, where the library decides: it takes the one that its
    images have, and channels last where they differ."""
    times, modes = walk.seconds(choice), {access.modes[choice.get(access.array, 0)] for access in walk.accesses}
    mode = modes.pop() if len(modes) == 1 else LAST
    return times.get(mode, times[LAST]) - min(times.values())


def _moves(graph: Graph, reading: Reading, choice: Choice) -> Iterator[Site]:
    """Arrays with other strides, by the nodes that write them."""
    layouts = reading.known
    for node in graph.nodes():
        written = dict.fromkeys(graph.root(n)[0] for n in graph.outputs_of(node) if n is not None)
        changed = {
            name: layouts[name].strides[choice[name]][name]
            for name in written
            if name in layouts and choice[name] < 2 and layouts[name].own != choice[name]
        }
        if changed:
            yield Site(graph, (node,), {"strides": changed})


def _calls(graph: Graph, reading: Reading, choice: Choice) -> Iterator[Site]:
    """The layouts in which convolutions work, and the images in blocks: one site, for they belong together."""
    modes = {node: walk.settle(choice) for node, walk in reading.calls.items()}
    modes = {node: mode for node, mode in modes.items() if node.layout != mode}
    blocks = [name for name, layout in choice.items() if layout == 2]
    users = dict.fromkeys(u for n in blocks for u in (*graph.producers(n), *graph.all_consumers(n)))
    if modes or blocks:
        data = {"modes": modes, "blocks": blocks, "title": f"{len(blocks)} images in blocks of channels"}
        yield Site(graph, tuple(dict.fromkeys((*modes, *users))), data)
