"""Where the time of a steady call of a module goes, measured on a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import nn

from daceopt.explore.report.tables import CallRow
from daceopt.modules.options import Options
from daceopt.modules.watched_call import EAGER, PYTHON, Parts, WatchedModule
from daceopt.runtime.seeds import own_random_numbers
from daceopt.torch_internals.pytree import tree_leaves

_SECONDS, _LEAST, _MOST = 1.0, 9, 200  # of a kind of call
_FEW = 3  # calls of which a mean is taken, at least


def steady_calls(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> list[CallRow]:
    """A call of a copy of the module, and its backward where results require gradients, after the first ones.

    Calls whose parts are timed take turns with calls that nothing disturbs, of which the whole is; the means are those
    of the fastest calls of each kind, which the rest of the machine has disturbed least. Raises CaptureError where the
    module cannot be copied, and what the call raises.
    """
    tensors, grad = [*model.parameters(), *tree_leaves((args, kwargs))], torch.is_grad_enabled()
    with own_random_numbers(tensors), torch.inference_mode(False), torch.set_grad_enabled(grad):
        watched = WatchedModule(model, args, kwargs, options)
        pieces, eager = watched.pieces
        rows = [_measure(watched, "call", watched.prepare, watched.forward)]
        if watched.results:
            rows.append(_measure(watched, "backward", watched.prepare_backward, watched.backward))
    if eager == pieces:  # where no piece was timed, all that ran is the model's own code
        rows = [row if EAGER in row.parts else replace(row, parts=_rename(row.parts, PYTHON, EAGER)) for row in rows]
    return [replace(row, pieces=pieces, eager=eager, compiles=watched.compiles) for row in rows]


def _rename(parts: Parts, name: str, other: str) -> Parts:
    return {other if part == name else part: seconds for part, seconds in parts.items()}


def _measure(watched: WatchedModule, name: str, prepare: Callable[[], None], call: Callable[[], None]) -> CallRow:
    whole: list[float] = []
    split: list[Parts] = []
    begin = time.perf_counter()
    least = 1 if watched.compiles else _LEAST
    while len(whole) < least or (len(whole) < _MOST and time.perf_counter() - begin < _SECONDS):
        prepare()
        start = time.perf_counter()
        call()
        whole.append(time.perf_counter() - start)
        prepare()
        split.append(watched.parts(call))
    fastest = min(len(whole), max(_FEW, len(whole) // 5))
    calls = sorted(split, key=lambda parts: sum(parts.values()))[:fastest]
    names = dict.fromkeys(name for parts in calls for name in parts)
    means = {name: 1e-9 * fmean(parts.get(name, 0.0) for parts in calls) for name in names}
    largest_first = dict(sorted(means.items(), key=lambda item: -item[1]))
    return CallRow(name, fmean(sorted(whole)[:fastest]), largest_first)
