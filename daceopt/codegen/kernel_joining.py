"""Several kernels in one translation unit, for compilers whose start costs more than what they start for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daceopt import system
from daceopt.codegen.compiler import CompileJob

_NAMED = 3  # kernels of a unit that its label tells


def joined(jobs: Sequence[CompileJob], least: int) -> list[CompileJob]:
    """Kernels of one program and target with equal flags as units of ``least`` or more, as many as there are cores.

    Their texts define no equal names, but for the headers that they begin with, which the compiler skips from the
    second on.
    """
    distinct = list(dict.fromkeys(jobs))
    count = max(1, min(system.cores(), len(distinct) // least))
    if least == 1 or len(distinct) < 2:
        return distinct
    return [_unit(distinct[k::count]) for k in range(count)]


def _unit(jobs: Sequence[CompileJob]) -> CompileJob:
    labels = [job.label for job in jobs]
    more = [f"and {len(labels) - _NAMED} more"] if len(labels) > _NAMED else []
    return replace(jobs[0], source="\n".join(job.source for job in jobs), label=", ".join([*labels[:_NAMED], *more]))
