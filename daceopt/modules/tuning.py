"""Finds the fastest way to run a graph by running it: recipes, options of their steps, and eager PyTorch.

What was found is kept in the cache, by the graph and the machine; a later call, process or warm start takes it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from daceopt import progress
from daceopt.errors import DaceoptError
from daceopt.passes.choice import Choice
from daceopt.passes.recipe import Recipe
from daceopt.runtime.places import device_of
from daceopt.store import builders
from daceopt.store.cache import default_cache, key

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced

logger = logging.getLogger("daceopt.dispatch")

EAGER = "eager PyTorch"
_KIND, _FILE = "tuned", "tuned.json"
_MARGIN = 0.03  # the share that a change of options must gain, twice: less is noise
_ROUND = 0.15  # seconds under the clock for each contender in one round

Options = dict[str, dict[str, int]]  # step -> option -> value
Run = Callable[[], object]


@dataclass(frozen=True)
class Found:
    """What runs a graph fastest: ``name`` is a recipe's or ``EAGER``; ``options`` those that differ from its own.

    ``seconds``: of one call (with its backward pass, where it trains), as measured, each contender's.
    """

    name: str
    options: Options
    seconds: dict[str, float]

    def __str__(self) -> str:
        changed = "; ".join(f"{step} with {_options_text(own)}" for step, own in self.options.items())
        times = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in self.seconds.items())
        return f"{self.name}{f' ({changed})' if changed else ''} is the fastest as measured: {times}"

    def recipe(self, base_recipe: Recipe) -> Recipe | None:
        """The recipe, one of those that ``given`` stands for; None for eager PyTorch."""
        base = next((r for r in alternatives(base_recipe) if r.name == self.name), None)
        for step, options in self.options.items():
            base = base and base.with_options(step, **options)
        return base


def _options_text(options: Mapping[str, int]) -> str:
    return ", ".join(f"{option}={value}" for option, value in options.items())


def alternatives(recipe: Recipe, trains: bool | None = None) -> tuple[Recipe, ...]:
    """The recipes to choose from; for programs with gradients (``trains``), or without; all where it is None."""
    return recipe.recipes(trains) if isinstance(recipe, Choice) else (recipe,)


def identity(graph: str, recipe: Recipe, code: str, device: torch.device | None = None) -> str:
    """What a finding is kept by; ``code`` stands for the version of the compiler, ``device``: where calls run."""
    where = "" if device is None or device.type != "cuda" else torch.cuda.get_device_name(device)
    rest = torch.get_num_threads(), code, where
    cache = default_cache()
    return builders.choose(cache, _KIND, lambda machine: key(_KIND, graph, recipe.fingerprint(), machine, *rest))


def lookup(identity: str) -> Found | None:
    """What was found for this graph before."""
    return default_cache().read(_KIND, identity, _read)


def _read(entry: Path) -> Found:
    entry_content = Found(**json.loads((entry / _FILE).read_text()))
    values = [v for own in entry_content.options.values() for v in own.values()]
    seconds = {name: float(s) for name, s in entry_content.seconds.items()}
    if not isinstance(entry_content.name, str) or not all(isinstance(v, int) for v in values):
        raise ValueError(f"{_FILE} is no finding")
    return replace(entry_content, seconds=seconds)


def keep(identity: str, best: Found) -> None:
    """Let it be known from now on."""

    def write(folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(vars(best)))

    default_cache().put(_KIND, identity, write)


def search(
    recipe: Recipe, run: Callable[[Recipe], Run], eager: Run | None, seconds: float, trains: bool | None = None
) -> Found:
    """Try the recipes, eager PyTorch where it is given, and then options of the best recipe's steps, one after the
    other, until ``seconds`` are over; ``run`` compiles with a recipe. ``trains``: see :func:`alternatives`.

    Deterministic but for the clock. Where no variant compiles in time, the first recipe is what is left. Raises what
    compiling that raises.
    """
    deadline = time.perf_counter() + seconds
    recipes = alternatives(recipe, trains)
    contenders = {recipes[0].name: run(recipes[0])}
    for other in recipes[1:]:
        contenders |= _compile(other, run)
    if eager is not None:
        contenders[EAGER] = eager
    spent = _measure(contenders)
    name = min(spent, key=lambda n: spent[n] * (1 if n != EAGER else 1 + _MARGIN))
    options: Options = {}
    if name != EAGER:
        base = next(r for r in recipes if r.name == name)
        options = _descend(base, contenders[name], run, deadline)
    if options:
        tuned = _with(base, options)
        spent[f"{name}, tuned"] = _measure({name: contenders[name], "tuned": run(tuned)})["tuned"]
    best_found = Found(name, options, spent)
    logger.info("%s", best_found)
    return best_found


def _compile(recipe: Recipe, run: Callable[[Recipe], Run]) -> dict[str, Run]:
    try:
        return {recipe.name: run(recipe)}
    except DaceoptError as error:
        logger.info("recipe %s does not compile it: %s", recipe.name, error)
        return {}


def _measure(contenders: Mapping[str, Run]) -> dict[str, float]:
    from daceopt.cost.measure import interleave

    return interleave(contenders, seconds=_ROUND, warmup=1, at_least=3)


def _descend(recipe: Recipe, best: Run, run: Callable[[Recipe], Run], deadline: float) -> Options:
    """Coordinate descent: each option in turn takes the value that is fastest with those before it."""
    options: Options = {}
    variants = list(_variants(recipe))
    with progress.steps(len(variants)) as counter:
        for step, option, value in variants:
            if time.perf_counter() > deadline:
                break
            counter.advance(f"{step} with {option}={value}")
            trial = {**options, step: {**options.get(step, {}), option: value}}
            contender = _compile(_with(recipe, trial), run).get(recipe.name)
            if contender is not None and all(_is_faster(contender, best) for _ in range(2)):
                options, best = trial, contender
    return options


def _is_faster(contender: Run, best: Run) -> bool:
    spent = _measure({"made": contender, "best": best})
    return spent["made"] < (1 - _MARGIN) * spent["best"]


def _with(recipe: Recipe, options: Options) -> Recipe:
    for step, own in options.items():
        recipe = recipe.with_options(step, **own)
    return recipe


def _variants(recipe: Recipe) -> Iterator[tuple[str, str, int]]:
    """(step, option, value) that may be faster than what the model of the machine says, most promising first."""
    from daceopt.cost.limits import limits

    own = limits()
    scaled: Sequence[tuple[str, str, int, tuple[float, ...]]] = (
        ("threading", "work", own.worthwhile, (0.25, 4)),
        ("parallelism-stitching", "blocks", 4, (0.25, 4)),
        ("parallelism-stitching", "branches", 7, (4,)),
        ("long-loop-splitting", "size", own.block, (0.25, 4)),
        ("reduction-ordering", "columns", own.columns, (0.25, 4)),
        ("transposition-tiling", "size", own.edge, (0.5, 2)),
        ("threading", "enough", own.enough, (0.25, 4)),
        ("block-mapping", "threads", 256, (0.5, 2)),
        ("grid-reduction", "blocks", 1024, (0.25,)),
    )
    names = {step.name for step in recipe}
    for step, option, value, factors in scaled:
        if step in names:
            yield from ((step, option, max(1, int(value * f))) for f in factors)


# -------------------------------------------------------------------- one call under the clock


def repeatable(traced: Traced, call: Callable[..., Any], arguments: Sequence[object]) -> Run:
    """A call on copies of ``arguments``, with its backward pass where the graph trains: nothing of the user's changes.

    The random numbers of the host stay where they are. On a device it says by the device's clock what it took.
    """
    taken = [_own(a, needed) for a, needed in zip(arguments, traced.requires_grad)]
    needs_gradients, device = trains(traced), device_of(taken)

    def run() -> None:
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(needs_gradients):
            results = [r for r in call(*taken) if isinstance(r, torch.Tensor) and r.requires_grad]
            if needs_gradients and results:
                torch.autograd.backward(results, [torch.ones_like(r) for r in results])
        for argument in taken:
            if isinstance(argument, torch.Tensor):
                argument.grad = None

    if device.type != "cuda":
        return run
    from daceopt.cost.measure import on_stream

    return on_stream(run, device=device)


def trains(traced: Traced) -> bool:
    """Whether a backward pass may follow a call of the graph: a result, or an argument by it, requires a gradient.
    (Dynamo compiles what runs under ``torch.no_grad`` with gradients on.)"""
    becomes = (after and not before for before, after in zip(traced.requires_grad, traced.changed, strict=True))
    return any(traced.results) or any(becomes)


def _own(argument: object, requires_grad: bool) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().clone().requires_grad_(requires_grad)
