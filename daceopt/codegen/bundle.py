"""Many small programs compiled together: few translation units, one shared library, little optimisation.

For test suites, where starting a compiler for each kernel and frame costs more than the code is worth.
"""

from __future__ import annotations

import ctypes
import logging
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, reduce
from pathlib import Path

import numpy as np

from daceopt.codegen.build import GeneratedProgram, Roles
from daceopt.codegen.compiler import CompileJob, Flags, Requirements, compile_objects, link
from daceopt.codegen.kernel_unit import support_header
from daceopt.errors import BuildError
from daceopt.ir.graph.graph import Graph
from daceopt.runtime.executable import LIBRARY, Executable, Exports, open_library
from daceopt.runtime.sources import Sources
from daceopt.store.cache import default_cache, key

logger = logging.getLogger("daceopt.build")

_QUICK = Flags(compile=("-O1",))
_UNIT_CHARACTERS = 400_000  # of source in one translation unit, about: more takes much memory


class Bundle:
    """Programs that wait to be compiled together, until the first of them is needed; then the next batch begins.

    Not for use by several threads at once.
    """

    def __init__(self) -> None:
        self._waiting: list[BundledProgram] = []
        self._lock = threading.Lock()
        self._count = 0

    def add(self, graph: Graph, roles: Roles, implement: Callable[[Graph], Requirements]) -> BundledProgram:
        """Generate the code of ``graph``, as ``program.build`` does. Raises BuildError and Unsupported."""
        self._count += 1
        generated = GeneratedProgram(graph, roles, implement, self._count, suffix=f"_{self._count}")
        program = BundledProgram(self, generated, f"_{self._count}")
        self._waiting.append(program)
        return program

    def build(self) -> None:
        """Compile what waits. A program that does not compile raises BuildError when it is run, and harms no other."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            _build(waiting)


class BundledProgram(Executable):
    """A program of a bundle; its first run compiles the bundle."""

    def __init__(self, bundle: Bundle, generated: GeneratedProgram, suffix: str):
        self._bundle = bundle
        self._constants = generated.constants
        self.jobs = tuple(generated.jobs)
        self._kept = generated.sources
        self.suffix = suffix
        self.outcome: Exports | BuildError | None = None
        self._prepare(generated.manifest)

    @cached_property
    def constants(self) -> tuple[np.ndarray, ...]:
        return tuple(np.ascontiguousarray(self._constants[tensor.name]) for tensor in self.manifest.constants)

    @cached_property
    def sources(self) -> Sources:
        return self._kept

    @cached_property
    def _functions(self) -> Exports:
        if self.outcome is None:
            self._bundle.build()
        if isinstance(self.outcome, BuildError):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


def _build(programs: Sequence[BundledProgram]) -> None:
    """Compile and load; where that fails, by halves, until what fails stands alone."""
    if not programs:
        return
    try:
        library = _library([job for program in programs for job in program.jobs])
        for program in programs:
            program.outcome = Exports(library, program.suffix)
    except BuildError as error:
        if len(programs) == 1:
            programs[0].outcome = error
            return
        logger.info("a bundle of %d programs is compiled by halves: %s", len(programs), error)
        _build(programs[: len(programs) // 2])
        _build(programs[len(programs) // 2 :])


def _library(jobs: Sequence[CompileJob]) -> ctypes.CDLL:
    objects = compile_objects([*_join(jobs), *(job for job in jobs if not _joinable(job))], workers=1)
    flags = reduce(Flags.__add__, (job.flags for job in jobs), Flags())
    with tempfile.TemporaryDirectory(dir=default_cache().scratch()) as folder:
        path = Path(folder) / LIBRARY
        link(list(dict.fromkeys(objects)), path, flags)
        return open_library(path)  # the file may go once it is mapped


def _joinable(job: CompileJob) -> bool:
    """Not a library's own file, which has options of its own: it is compiled once per machine, whatever else there is
    in a bundle; joined with others it would be compiled for each combination of them."""
    return job.kind != "kernel" or not job.flags.includes or not job.flags.compile


def _join(jobs: Iterable[CompileJob]) -> Iterator[CompileJob]:
    """Few sources for many: those of one kind and target with equal compile flags, each text once."""
    groups: dict[tuple[object, ...], list[CompileJob]] = {}
    for job in dict.fromkeys(j for j in jobs if _joinable(j)):
        groups.setdefault((job.kind, job.target, job.flags.compile, bool(job.flags.includes)), []).append(job)
    for members in groups.values():
        size, unit = 0, []
        for job in members:
            unit.append(job)
            size += _own_characters(job.source)
            if size >= _UNIT_CHARACTERS:
                yield _unit(unit)
                size, unit = 0, []
        if unit:
            yield _unit(unit)


def _own_characters(source: str) -> int:
    """Without the header that all kernels begin with: the compiler skips it from the second on."""
    header = support_header("")
    return len(source) - (len(header) if source.startswith(header) else 0)


def _unit(jobs: Sequence[CompileJob]) -> CompileJob:
    """One source of several. Frames define equal names, so each is in a namespace of its own."""
    flags = reduce(Flags.__add__, (job.flags for job in jobs), _QUICK)
    sources = [job.source for job in jobs]
    if jobs[0].kind == "frame":
        sources = _apart(sources)
    return CompileJob("\n".join([*sources, ""]), jobs[0].kind, flags, f"{len(jobs)} joined", jobs[0].target)


def _apart(sources: Iterable[str]) -> list[str]:
    """The include lines of all, then the rest of each in a namespace."""
    includes: dict[str, None] = {}
    bodies = []
    for source in sources:
        lines = source.splitlines()
        includes.update(dict.fromkeys(line for line in lines if line.startswith("#include")))
        rest = "\n".join(line for line in lines if not line.startswith("#include"))
        bodies.append(f"namespace unit_{key(source)[:16]} {{\n{rest}\n}}")
    return [*includes, *bodies]
