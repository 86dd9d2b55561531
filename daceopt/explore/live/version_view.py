"""One version of a session as plain data, which a page shows: the walk, scenes of its graph, a kernel in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from daceopt.cost.machine import Machine
from daceopt.errors import SessionError, Unsupported
from daceopt.explore.report.scenes import Scenes
from daceopt.explore.report.text import computing, idle_steps, limits
from daceopt.explore.report.units import amount, duration, percent
from daceopt.explore.session.steps import in_order, whole_steps
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.schedule import schedule, schedule_text

if TYPE_CHECKING:
    from daceopt.explore.report.report import Report
    from daceopt.explore.report.tables import KernelRow
    from daceopt.explore.session.session import Session
    from daceopt.explore.session.site_list import SiteKey, SiteList
    from daceopt.explore.session.version import Version
    from daceopt.ir.control.program import Program
    from daceopt.passes.transform import Transformation

Data = dict[str, Any]


class VersionView:
    """What a page shows of ``session`` where it is now; ``number``: of the version. Nothing is compiled for it."""

    def __init__(self, session: Session):
        self.session, self.version, self.number = session, session.at, session.at.number
        self.report: Report = session.report(code=False)
        self._directions = [d for d in ("forward", "backward") if self.report.of(d)]
        self._scenes = {d: Scenes(self.report, d) for d in self._directions}
        self.sites: SiteList | None = None  # once somebody has asked

    # ---------------------------------------------------------------- what is shown

    @cached_property
    def steps(self) -> dict[str, Transformation]:
        """The steps that may come next, by their texts."""
        return {str(step): step for step in whole_steps() if in_order(self.version, step)}

    @cached_property
    def state(self) -> Data:
        """The walk and the graph in outline."""
        session, report = self.session, self.report
        line, undone = self.version.line(), session.undone
        return {
            "title": session.title,
            "branch": session.name,
            "branches": list(session.branches),
            "version": self.number,
            "versions": [*map(_version_row, line), *({**_version_row(v), "undone": True} for v in reversed(undone))],
            "notes": list(session.notes),
            "path": [str(step) for step in session.path],
            "almost": list(self.version.misses())[:5] if self.version.steps and not self.version.sites() else [],
            "steps": [{"name": name, "level": step.level} for name, step in self.steps.items()],
            "idle": idle_steps(report),
            "inputs": report.inputs,
            "directions": self._directions,
            "kernels": [_kernel_line(k, row) for k, row in enumerate(report.kernels)],
            "moved": amount(report.bytes_moved[1], "B"),
            "limits": limits(report.machine) if report.machine else "",
        }

    def scene(self, direction: str, module: int) -> Data:
        """What is drawn of a module. Raises SessionError where there is none."""
        scenes = self._scenes.get(direction)
        if scenes is None or module >= len(scenes.modules):
            raise SessionError(f"there is no module {module} in the {direction} graph; reload the page")
        return {**asdict(scenes.scene(module)), "direction": direction, "module": module}

    def kernel(self, number: int) -> Data:
        """One kernel beside the limits of the machine, its schedule and its loops."""
        row, node = self.row(number), self.node(number)
        tree = schedule.schedule_of(node.kernel) if isinstance(node, KernelNode) else None
        loops = [] if tree is None else schedule.loops(tree)
        return {
            "version": self.number,
            "kernel": number,
            "label": row.label,
            "direction": row.direction,
            "origin": row.origin,
            "writes": row.writes,
            "contents": row.contents,
            "library": row.library,
            "why": row.why,
            "schedule": "" if tree is None else _schedule(tree),
            "loops": [{"name": str(loop.param), "extent": str(loop.extent), "kind": loop.kind} for loop in loops],
            "work": f"{amount(row.bytes, 'B')}, {amount(row.flops, 'flop')}, at least {duration(row.limit)}",
            "roofline": _roofline(self.report.machine, row, row.seconds),
        }

    def sites_at(self, number: int, sites: SiteList) -> Data:
        """Of ``sites`` those at one kernel, and what almost applies there, with the reasons."""
        place = self._place(number)
        found_here = [(k, s) for k, s in enumerate(sites) if _touches(s.key, place)]
        return {
            "version": self.number,
            "kernel": number,
            "sites": [{"site": k, "step": str(s.transformation), "text": s.text} for k, s in found_here],
            "misses": [
                {"step": str(m.transformation), "text": m.text} for m in sites.near_misses if _touches(m.key, place)
            ],
            "failures": dict(sites.failures),
            "late": list(sites.late),
            "whole": list(sites.whole),
        }

    def measurement(self, number: int, seconds: float, text: str) -> Data:
        """What a kernel took, in its roofline."""
        roofline = _roofline(self.report.machine, self.row(number), seconds)
        return {"version": self.number, "kernel": number, "text": text, "roofline": roofline}

    # ---------------------------------------------------------------- where it is

    def row(self, number: int) -> KernelRow:
        """A kernel by its place. Raises SessionError where there is none."""
        if number >= len(self.report.kernels):
            raise SessionError(f"there is no kernel {number}; there are {len(self.report.kernels)}")
        return self.report.kernels[number]

    def position(self, number: int) -> int:
        """The place of a kernel among the nodes of its direction."""
        direction = self.row(number).direction
        return number - self.report.kernels.index(self.report.of(direction)[0])

    def node(self, number: int) -> Node:
        """The node of a kernel."""
        return self._graphs[self.row(number).direction].nodes()[self.position(number)]

    @cached_property
    def _graphs(self) -> Mapping[str, Any]:
        return dict(self.version.program.by_direction())

    @cached_property
    def scratch(self) -> Program:
        """A copy to try edits on."""
        return self.session.program

    def _place(self, number: int) -> tuple[str, Any]:
        direction = self.row(number).direction
        return direction, tuple(self._graphs[direction].outputs_of(self.node(number)))

    def site_of(self, number: int, sites: SiteList) -> Any:
        """The first of ``sites`` that is at a kernel. Raises SessionError where none is."""
        place = self._place(number)
        site = next((s for s in sites if _touches(s.key, place)), None)
        if site is None:
            raise SessionError("the edit does not apply there any more; look again")
        return site


def _touches(key: SiteKey, place: tuple[str, object]) -> bool:
    return key.body == 0 and (key.direction, True) == (place[0], place[1] in key.nodes)


def _version_row(version: Version) -> Data:
    return {
        "number": version.number,
        "title": version.title,
        "sites": version.sites() if version.steps else None,
        "nodes": version.nodes,
        "moved": amount(version.bytes, "B"),
        "undone": False,
    }


def _kernel_line(number: int, row: KernelRow) -> Sequence[Any]:
    return number, row.direction, row.label, row.origin, row.bytes, amount(row.bytes, "B"), row.library


def _schedule(tree: schedule.Tree) -> str:
    try:
        return schedule_text.text(tree)
    except Unsupported as error:
        return f"# {error}"


def _roofline(machine: Machine | None, row: KernelRow, seconds: float | None) -> Data | None:
    """What the page draws: roofs of the machine, and the kernel below them. None for a kernel that computes nothing."""
    if machine is None or not row.flops or not row.bytes:
        return None
    spent = seconds or max(row.limit, 1e-12)
    share = "" if seconds is None else f", {percent(row.limit / seconds)} of the limit"
    return {
        "bandwidths": {"memory": machine.memory_bandwidth, "caches": machine.cache_bandwidth},
        "rates": [{"name": name, "flops": rate} for name, rate in computing(machine)],
        "intensity": row.flops / row.bytes,
        "reached": row.flops / spent,
        "timed": seconds is not None,
        "text": f"{'at least ' * (seconds is None)}{duration(spent)}, {amount(row.flops / spent, 'flop/s')}{share}",
    }
