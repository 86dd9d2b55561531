"""What to do first about a model that is slow: rules over what was measured, each with what it saves at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daceopt.explore.report.tables import Advice, KernelRow, Tables
from daceopt.explore.report.units import amount, duration, percent, plural
from daceopt.modules.breaks import Break
from daceopt.modules.watched_call import AROUND, COMPILING, DYNAMO, EAGER, INSIDE, OF_PYTORCH, PYTORCH, WAITING

_MOST = 3
_LEAST = 0.02  # of a call: less is not worth a sentence
_MUCH = 0.2  # of a call around its programs
_TWICE = 2  # a batch so many times as large shares what is around a call


def advise(report: Tables, breaks: Sequence[Break] = ()) -> list[Advice]:
    """What saves most, at most three; ``breaks``: why parts of the module run in eager PyTorch."""
    rules = (_eager(report, breaks), _compiling(report), _around(report), _inside(report), _waiting(report))
    advices = [*(advice for rule in rules for advice in rule), *_kernels(report)]
    worth = [advice for advice in advices if advice.seconds >= _LEAST * report.spent > 0]
    return sorted(worth, key=lambda advice: -advice.seconds)[:_MOST]


def text(advice: Advice, report: Tables) -> str:
    """The sentence with its gain."""
    gain = f"{duration(advice.seconds)}, {percent(advice.seconds / report.spent)} of the time"
    return f"{advice.sentence} (at most {gain})"


def _part(report: Tables, *names: str) -> float:
    return sum(call.parts.get(name, 0.0) for call in report.calls for name in names)


def _eager(report: Tables, breaks: Sequence[Break]) -> Iterator[Advice]:
    if not breaks or not report.calls:
        return
    call, worst = report.calls[0], breaks[0]
    more = f" (and {plural(len(breaks) - 1, 'more reason')})" if breaks[1:] else ""
    pieces = f"{call.eager} of {plural(call.pieces, 'piece')} of the call in eager PyTorch"
    where = pieces if call.eager else f"the call is {plural(call.pieces, 'piece')} with Python between them"
    instead = f": {worst.instead}" if worst.instead else ""
    yield Advice(f"{where}, because {worst.text}{more}{instead}", _part(report, EAGER, DYNAMO))


def _compiling(report: Tables) -> Iterator[Advice]:
    for call in report.calls:
        if call.compiles:
            sentence = f"each call compiles again, because {call.compiles}: keep that as it is from call to call"
            yield Advice(sentence, call.parts.get(COMPILING, 0.0))


def _around(report: Tables) -> Iterator[Advice]:
    """What a call costs whatever it computes."""
    around = _part(report, *AROUND)
    if around >= _MUCH * report.spent > 0:
        spent = sorted(((_part(report, name), name) for name in AROUND), reverse=True)
        names = ", ".join(f"{name} {duration(seconds)}" for seconds, name in spent[:3] if seconds)
        sentence = (
            f"{percent(around / report.spent)} of the time is around the programs ({names}) and does not grow with"
        )
        yield Advice(f"{sentence} the batch: call with twice as much at once", around * (1 - 1 / _TWICE))


def _inside(report: Tables) -> Iterator[Advice]:
    """Operators that programs ask of PyTorch."""
    if report.hosted:
        names = ", ".join(dict.fromkeys(o.name.partition(".")[0] for o in report.hosted))
        reason = next((f" ({o.reason})" for o in report.hosted if o.reason), "")
        yield Advice(f"programs call PyTorch for {names}{reason}: do without, or less often", _part(report, PYTORCH))


def _waiting(report: Tables) -> Iterator[Advice]:
    sentence = "the calling thread waits, for other threads or for a core: torch.set_num_threads(cores that are free)"
    yield Advice(sentence, _part(report, WAITING))


def _kernels(report: Tables) -> Iterator[Advice]:
    """Kernels far from what the machine can do; equal ones of several layers together."""
    alike: dict[tuple[str, str, str], list[KernelRow]] = {}
    for kernel in report.kernels:
        if kernel.seconds and kernel.library not in OF_PYTORCH:
            alike.setdefault((kernel.direction, kernel.label, kernel.contents), []).append(kernel)
    measured = sum(kernel.seconds or 0.0 for kernel in report.kernels)
    # their share of the programs of a call: alone they may have been disturbed
    scale = min(1.0, _part(report, *INSIDE) / measured) if report.calls and measured else 1.0
    for (direction, label, _), kernels in alike.items():
        seconds, limit = scale * sum(k.seconds or 0.0 for k in kernels), sum(k.limit for k in kernels)
        if not 0 < limit < seconds:
            continue
        times = f" x {len(kernels)}" if kernels[1:] else ""
        origin = f" ({kernels[0].origin})" if kernels[0].origin else ""
        by = kernels[0].library
        how = f"larger operands are faster in {by}" if by else "try tune=True, or its schedule in daceopt.explore"
        sentence = f"{direction} {label}{times}{origin} runs at {_rate(report, kernels, seconds, limit)}: {how}"
        yield Advice(sentence, seconds - limit)


def _rate(report: Tables, kernels: Sequence[KernelRow], seconds: float, limit: float) -> str:
    """What the kernels reach of what limits them."""
    flops, moved = sum(k.flops for k in kernels), sum(k.bytes for k in kernels)
    bound = flops / report.machine.flops if report.machine else 0.0
    quantity, unit = (flops, "flop/s") if bound >= 0.9 * limit else (moved, "B/s")
    return f"{amount(quantity / seconds, unit)} of {amount(quantity / limit, unit)}"
