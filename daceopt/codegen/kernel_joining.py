"""Several kernels in one translation unit, for compilers whose start costs as much as what they start for."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from daceopt.codegen.compiler import CompileJob
from daceopt.codegen.toolchain import UnitSize

_NAMED = 3  # kernels of a unit that its label tells


def join(jobs: Sequence[CompileJob], size: UnitSize) -> list[CompileJob]:
    """Kernels of one program and target as units of this size, those together that are compiled with equal flags.

    Their texts define no equal names, but for the headers that they begin with, which the compiler skips from the
    second on. In which unit a kernel is depends on its text: where some kernels of a program change, only units with
    these are compiled anew.
    """
    alike: dict[object, list[CompileJob]] = {}
    for job in dict.fromkeys(jobs):
        alike.setdefault((job.flags, job.toolchain.arithmetic(job.source)), []).append(job)
    return [unit for part in alike.values() for unit in _units(part, size.units(len(part)))]


def _units(jobs: Sequence[CompileJob], count: int) -> list[CompileJob]:
    if count >= len(jobs):
        return list(jobs)
    units: dict[int, list[CompileJob]] = {}
    for job in jobs:
        units.setdefault(zlib.crc32(job.source.encode()) % count, []).append(job)
    return [_unit(members) for members in units.values()]


def _unit(jobs: Sequence[CompileJob]) -> CompileJob:
    labels = [job.label for job in jobs]
    more = [f"and {len(labels) - _NAMED} more"] if len(labels) > _NAMED else []
    return replace(jobs[0], source="\n".join(job.source for job in jobs), label=", ".join([*labels[:_NAMED], *more]))
