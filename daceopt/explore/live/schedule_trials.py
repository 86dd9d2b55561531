"""Schedules edited by hand: what a page may ask of the loops of one kernel, as steps that recipes can name."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daceopt.errors import SessionError
from daceopt.ir.schedule import schedule, schedule_text
from daceopt.passes.transform import NearMiss
from daceopt.transformations.hardware.loop_binding import LoopBinding
from daceopt.transformations.hardware.loop_peeling import LoopPeeling
from daceopt.transformations.hardware.map_interchange import MapInterchange
from daceopt.transformations.hardware.map_tiling import MapTiling

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.graph.kinds import Node
    from daceopt.transformations.hardware._scheduling import KernelStep

Loops = tuple[str, ...]
EDITS: Mapping[str, Callable[[Loops, str, str], KernelStep]] = {
    "split": lambda loops, value, kernel: MapTiling(size=_count(value), loops=loops, kernel=kernel),
    "reorder": lambda loops, value, kernel: MapInterchange(order=loops, kernel=kernel),
    "bind": lambda loops, value, kernel: LoopBinding(loops=loops, kind=value, kernel=kernel),
    "peel": lambda loops, value, kernel: LoopPeeling(loop=_single(loops), last=_count(value), kernel=kernel),
}


def step_of(edit: str, loops: Sequence[str], value: str, label: str) -> KernelStep:
    """The step that makes an edit of the kernels called ``label``. Raises SessionError for an edit that there is not,
    and DaceoptError for values that it does not take."""
    if edit not in EDITS:
        raise SessionError(f"there is no such edit; expected one of {', '.join(EDITS)}")
    if not loops:
        raise SessionError(f"{edit}: which loops? name at least one")
    return EDITS[edit](tuple(loops), value, glob.escape(label))


def _count(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 8):
        raise SessionError("expected a number of iterations, such as 32")
    return int(value)


def _single(loops: Loops) -> str:
    if len(loops) > 1:
        raise SessionError(f"peel takes one loop; {len(loops)} are named")
    return loops[0]


def trial(step: KernelStep, graph: Graph, node: Node) -> dict[str, Any]:
    """Is the edit legal at a kernel? The schedule that it gives, or the dependence, loop or element that forbids it."""
    match = next(iter(step.match_at(graph, node)), None)
    if match is None:
        return {"legal": False, "text": "nothing changes: the loops are like that already"}
    if isinstance(match, NearMiss):
        return {"legal": False, "text": f"not legal: {match.reason}"}
    return {"legal": True, "text": schedule_text.text(schedule.schedule_of(match["kernel"].placed))}
