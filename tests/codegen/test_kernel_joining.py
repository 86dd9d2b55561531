"""Kernels in translation units: how many, which together, and which of them a change compiles anew."""

from __future__ import annotations

import pytest

from daceopt import system
from daceopt.codegen.compiler import CompileJob
from daceopt.codegen.kernel_joining import join
from daceopt.codegen.toolchain import UnitSize


def _kernels(count: int) -> list[CompileJob]:
    return [CompileJob(f"void k{k}();", label=f"k{k}") for k in range(count)]


@pytest.mark.parametrize(
    ("size", "kernels", "units"),
    [
        (UnitSize(), 5, 5),  # each by itself
        (UnitSize(4, 8), 3, 1),
        (UnitSize(4, 8), 16, 2),  # one a core
        (UnitSize(4, 8), 80, 10),
        (UnitSize(8, None), 80, 2),  # as few as keep the cores busy
    ],
)
def test_number_of_units(size: UnitSize, kernels: int, units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "cores", lambda: 2)
    assert size.units(kernels) == units
    found = join(_kernels(kernels), size)
    assert len(found) <= units
    assert sorted(line for unit in found for line in unit.source.splitlines()) == sorted(
        job.source for job in _kernels(kernels)
    )


def test_equal_kernels_are_one() -> None:
    assert len(join(_kernels(5) + _kernels(5), UnitSize())) == 5


def test_kernels_of_other_flags_are_apart() -> None:
    """Wrapping integers would cost the other kernels what the compiler concludes about their loops."""
    plain = [CompileJob(f"float v{k};") for k in range(3)]
    whole = [CompileJob(f"int64_t v{k};") for k in range(3)]
    assert len(join([*plain, *whole], UnitSize(4, 8))) == 2


def test_a_change_leaves_most_units_as_they_are() -> None:
    before = {unit.source for unit in join(_kernels(80), UnitSize(4, 8))}
    changed = [CompileJob("void other();"), *_kernels(80)[1:]]
    after = {unit.source for unit in join(changed, UnitSize(4, 8))}
    assert len(after - before) <= 2
