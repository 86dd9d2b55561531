"""What to do first: each rule by numbers that were measured, three at most, none without a gain."""

from __future__ import annotations

from dataclasses import replace

from daceopt.cost.machine import Machine
from daceopt.explore.report import call_page
from daceopt.explore.report.advice import advise
from daceopt.explore.report.report import Report
from daceopt.explore.report.tables import CallRow, KernelRow, OperatorRow
from daceopt.modules import watched_call
from daceopt.modules.breaks import Break, SourceLine

MS = 1e-3
PRINT = Break("print writes to the terminal", "between", SourceLine("net.py", 7, "forward"), "take it out of forward")


def _report(kernels: list[KernelRow] | None = None, **parts: float) -> Report:
    call = CallRow("call", sum(parts.values()), {getattr(watched_call, k): v for k, v in parts.items()}, 3, 1)
    machine = Machine("a machine", 2, 32768, 1 << 20, 1 << 25, ((1 << 20, 10e9),), 100e9)
    return Report("model", calls=[call], kernels=kernels or [], machine=machine)


def _sentences(report: Report, *breaks: Break) -> list[str]:
    report.advice = advise(report, breaks)
    return call_page.lines(report)


def test_pieces_in_eager_name_the_line_and_what_to_write() -> None:
    (sentence,) = _sentences(_report(EAGER=3 * MS, DYNAMO=1 * MS, GENERATED=6 * MS), PRINT)
    for text in ("1 of 3 pieces", "net.py:7", "print writes", "take it out of forward", "at most 4 ms, 40 %"):
        assert text in sentence
    assert not _sentences(_report(EAGER=3 * MS, GENERATED=7 * MS))  # by choice: nothing says that it were faster
    whole = _report(DYNAMO=4 * MS, GENERATED=6 * MS)
    whole.calls = [replace(whole.calls[0], eager=0)]
    (sentence,) = _sentences(whole, PRINT, PRINT)
    assert "3 pieces with Python between them" in sentence and "(and 1 more reason)" in sentence


def test_calls_that_compile_again() -> None:
    report = _report(COMPILING=90 * MS, GENERATED=10 * MS)
    report.calls = [replace(report.calls[0], compiles="len(state) == 3")]
    (sentence,) = _sentences(report)
    assert "len(state) == 3" in sentence and "90 ms, 90 %" in sentence


def test_small_batches() -> None:
    (sentence,) = _sentences(_report(GUARDS=3 * MS, PYTHON=1 * MS, GENERATED=6 * MS))
    assert "40 % of the time is around the programs (guards 3 ms, Python 1 ms)" in sentence
    assert "twice as much at once (at most 2 ms, 20 %" in sentence
    assert not _sentences(_report(GUARDS=1 * MS, GENERATED=9 * MS))


def test_kernels_far_from_the_machine() -> None:
    slow = KernelRow("forward", "softmax", "y", "64 x 64", int(10e6), 10, 1 * MS, 3 * MS, origin="layers.0")
    product = KernelRow("forward", "matmul", "z", "A, B", 10, int(1e8), 1 * MS, 2 * MS, library="mkl")
    report = _report([slow, replace(slow, origin="layers.1"), product], GENERATED=6 * MS, LIBRARIES=2 * MS)
    first, second = _sentences(report)
    assert "forward softmax x 2 (layers.0) runs at 3.33 GB/s of 10 GB/s: try tune=True" in first
    assert "at most 4 ms, 50 %" in first
    assert "forward matmul runs at 50 Gflop/s of 100 Gflop/s" in second and "faster in mkl" in second
    halved = _report([slow, product], GENERATED=2 * MS, LIBRARIES=0.5 * MS)  # as they take in the call itself
    assert "at most 500 us" in _sentences(halved)[0]


def test_pytorch_from_inside_waiting_and_three_at_most() -> None:
    report = _report(PYTORCH=5 * MS, WAITING=3 * MS, GUARDS=4 * MS, EAGER=2 * MS, GENERATED=1 * MS)
    report.operators = [OperatorRow("_fft_r2c.default", 1, "host", "no native form for complex numbers")]
    sentences = _sentences(report, PRINT)
    assert len(sentences) == 3 and "PyTorch for _fft_r2c (no native form" in sentences[0]
    assert "waits" in sentences[1] and sentences[0].startswith("1. ")
    assert not _sentences(_report(WAITING=0.01 * MS, GENERATED=9 * MS))
