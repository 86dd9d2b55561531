"""A version of a session as a report: its kernels, what moves, what each step did; and, built, what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from daceopt import libs
from daceopt.codegen import target
from daceopt.codegen.build import GeneratedProgram
from daceopt.codegen.shown import Shown, by_result
from daceopt.codegen.working_memory import plan_memory
from daceopt.cost.device_machine import machine_of
from daceopt.errors import DaceoptError
from daceopt.explore.report import collect, memory
from daceopt.explore.report.built_program import BuiltProgram
from daceopt.explore.report.collect import Direction
from daceopt.explore.report.profile import shortest
from daceopt.explore.report.report import Report
from daceopt.ir.control.region import everything
from daceopt.ir.legality.hardware import LIMITS, is_mapped
from daceopt.ir.schedule import schedule
from daceopt.passes.recipe import recipes
from daceopt.passes.runner import Runner

if TYPE_CHECKING:
    from daceopt.explore.report.built_program import Times
    from daceopt.explore.session.subject import Subject
    from daceopt.explore.session.version import Version
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph
    from daceopt.passes.step import Step

_LEAST = "none"  # the recipe that does what every program needs to run, and nothing else


def finish(program: Program) -> tuple[Program, list[str]]:
    """A copy that can be built, and the steps that this took: of the recipe ``none``, which lowers every operator, and
    where kernels run on an accelerator and some of them are not scheduled for it, of the recipe that does that."""
    finished, runner = program.copy(), Runner(recipes.get(_LEAST))
    runner.apply(finished, runner.recipe.resolve())
    if not all(map(_is_scheduled, finished.directions())):
        schedules = recipes.get(target.get(finished.forward.options.target).recipe).resolve()
        runner.apply(finished, [step for step in schedules if step.level == "hardware"])
    return finished, list(dict.fromkeys(r.name for r in runner.history if r.sites))


def what_is_unfinished(program: Program) -> str:
    """What a version may lack that had to be finished to run: ``not lowered``."""
    return "not lowered or scheduled" if program.forward.options.target in LIMITS else "not lowered"


def _is_scheduled(graph: Graph) -> bool:
    """Can each of its kernels run as it is scheduled? On a processor any can."""
    parts = [part for part in everything(graph) if part.options.target in LIMITS]
    trees = (schedule.schedule_of(node.kernel) for part in parts for node in part.kernels())
    return all(map(is_mapped, trees))


def report_of(subject: Subject, version: Version, session: str, measure: bool, code: bool) -> Report:
    """What a version is. ``measure``: build it and run it kernel by kernel; where it cannot be built as it is, as
    :func:`finish` has it, which a note says. ``code``: with the C++ of its kernels, where they are lowered."""
    program, added = finish(version.program) if measure else (version.program, [])
    first = version.line()[0]
    report = Report(
        subject.title,
        "training" if subject.trains or program.backward is not None else "inference",
        f"of session {session}, {len(version.path())} steps",
        notes=[*subject.notes, *version.notes],
        nodes=(first.nodes, sum(len(g.nodes()) for g in program.directions())),
        machine=machine_of(subject.device),
    )
    report.notes += [f"{what_is_unfinished(program)} yet: finished by {', '.join(added)}"] if added else []
    report.steps = collect.steps(map(_record, version.history()), version.sizes)
    own = {k: t for k, t in subject.tensors.items() if k not in subject.state}
    report.inputs = [collect.describe(subject.names.get(f"input:{k}", f"input {k}"), t) for k, t in own.items()]
    _program(report, subject, program, version.sizes, measure, code)
    report.bytes_moved = (first.bytes, sum(k.bytes for k in report.kernels))
    return report


def _record(step: Step) -> dict[str, Any]:
    """As it is kept with programs."""
    return {**vars(step), **{name: str(vars(step)[name]) for name in ("bytes_before", "bytes_after")}}


def _program(
    report: Report, subject: Subject, program: Program, sizes: Mapping[str, int], measure: bool, code: bool
) -> None:
    lowered = all(not part.operators() for g in program.directions() for part in everything(g))
    with BuiltProgram.temporary(program) if measure else nullcontext() as built:
        times = shortest(built, subject.tensors) if built is not None else [{}, {}]
        codes = (
            [by_result(e) for e in built.executables()] if built is not None else _print_code(program, code and lowered)
        )
    directions = list(_directions(subject, program, times, codes))
    assert report.machine is not None
    report.machine = collect.calibrate(report.machine, directions, sizes)
    if lowered:
        working = plan_memory(program, sizes)
        report.memory, report.peak, report.saved = memory.rows(working), working.peak, working.saved_bytes
    for direction in directions:
        report.edges += collect.edges(direction, sizes, len(report.kernels))
        report.kernels += collect.kernels(direction, sizes, report.machine)


def _print_code(program: Program, code: bool) -> list[dict[str, Shown]]:
    """The code of each direction as it would be compiled."""
    codes: list[dict[str, Shown]] = []
    for k, graph in enumerate(program.directions()):
        codes.append(_code(graph, program.roles(graph), k) if code else {})
    return codes


def _code(graph: Graph, roles: Mapping[str, str], position: int) -> dict[str, Shown]:
    try:
        built = GeneratedProgram(graph, roles, libs.implement, position)
    except DaceoptError:  # said where it is built
        return {}
    kernels = enumerate(built.manifest.kernels)
    return {n: Shown(built.sources.of(k), built.sources.schedules[k]) for k, info in kernels for n in info.writes}


def _directions(
    subject: Subject, program: Program, times: list[Times], codes: list[dict[str, Shown]]
) -> Iterator[Direction]:
    for k, (name, graph) in enumerate(program.by_direction()):
        roles = program.roles(graph)
        names = {array: result_name(subject, role) for array, role in roles.items()}
        yield Direction(name, graph, {n: text for n, text in names.items() if text}, times[k], codes[k])


def result_name(subject: Subject, role: str) -> str:
    """What the model calls a result."""
    kind, _, position = role.partition(":")
    if kind == "grad_input":
        return f"gradient of {subject.names.get(f'input:{position}', f'input {position}')}"
    return subject.names.get(role, f"output {position}") if kind == "output" else ""
