"""How long kernels take that a graph could have: each is built by itself, scheduled as the target does, and run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daceopt.codegen import target
from daceopt.errors import Unsupported
from daceopt.ir.fusion.fusion_plan import plan
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.libs.kernel_times import kernel_times
from daceopt.passes.recipe import recipes
from daceopt.passes.runner import Runner
from daceopt.store.cache import key
from daceopt.transformations.local._fusion_space import FusionCandidate

RUNS = 15
MOST_BYTES = 256 << 20  # of the arrays of one program; a candidate may have more by itself


def kernel_timings(candidates: Sequence[FusionCandidate]) -> list[float]:
    """Seconds of each: the shortest of some runs, for what others do meanwhile only adds time.

    Raises Unsupported for kernels over open sizes, or that run elsewhere than on the processor: they have no time here.
    """
    seconds: list[float] = []
    for group in _programs(candidates):
        seconds += _time_each(group)
    return seconds


def _programs(candidates: Sequence[FusionCandidate]) -> Iterator[list[FusionCandidate]]:
    """As many candidates at once as memory takes easily."""
    group: list[FusionCandidate] = []
    total = 0.0
    for candidate in candidates:
        size = candidate.bytes
        if group and total + size > MOST_BYTES:
            yield group
            group, total = [], 0.0
        group.append(candidate)
        total += size
    if group:
        yield group


def _time_each(candidates: Sequence[FusionCandidate]) -> list[float]:
    graph = Graph("candidates")
    writes = [_add(graph, c.graph, plan(c.kernel)) for c in candidates]
    machine = target.get(candidates[0].graph.options.target)
    if machine.name != "cpu":
        raise Unsupported(f"kernels for {machine.name} are not timed here; choose another score")
    graph.options = candidates[0].graph.options
    Runner(recipes.get(machine.recipe)).run(graph, levels=("hardware",))
    seconds = kernel_times(graph, RUNS, key("fusion candidates", *(repr(c.kernel) for c in candidates)))
    return [seconds[own] for own in writes]


def _add(graph: Graph, source: Graph, kernel: Kernel) -> str:
    """Add a kernel of another graph, over arrays of its own; returns one that it writes."""
    names: dict[str, str] = {}
    for access in kernel.reads():
        names[access.array] = _add_input(graph, source, access.array, names)
    written = [a.array for a in kernel.writes()]
    for array in dict.fromkeys(written):
        _check_size(source, array)
        strides = None if source.is_part(array) else source.strides(array)
        names[array] = graph.add_array(array, source.shape(array), source.dtype(array), strides)
        graph.add_output(names[array])
    graph.add_kernel(kernel.rename_locals_apart(graph).over(names))
    return names[written[0]]


def _add_input(graph: Graph, source: Graph, array: str, names: dict[str, str]) -> str:
    """An input that stands for ``array``, or a view of one."""
    root, offset = source.root(array)
    _check_size(source, root)
    if root not in names:
        names[root] = graph.add_array(root, source.shape(root), source.dtype(root), source.strides(root))
        graph.inputs.append(names[root])
    if root == array:
        return names[root]
    return names.get(array) or graph.add_view(names[root], array, source.shape(array), source.strides(array), offset)


def _check_size(graph: Graph, array: str) -> None:
    if not isinstance(graph.size(array), int):
        raise Unsupported(f"{array} has shape {graph.shape(array)}; only kernels over known sizes can be timed")
