"""What a trace assumed: of symbolic sizes, which is kept with the program and installed again, and of dictionaries.

Tracing may ask a symbolic size a question (is it even? more than 16?); the answer holds for the example, and PyTorch
notes it, so that Dynamo compiles anew where it does not. A warm start does not trace, and has to note the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import relation_text
from daceopt.errors import Unsupported
from daceopt.torch_internals.dynamo_guards import KEYS_OF_DICTIONARY
from daceopt.torch_internals.dynamo_tracing import current_translator
from daceopt.torch_internals.fake_tensors import FakeTensor
from daceopt.torch_internals.symbol_functions import upper_bound

_MANY = 1024
"""Where nothing tells how large a size may be."""


def environment(inputs: Sequence[object]) -> object:
    """The ``ShapeEnv`` of the sizes of these arguments; None where all are numbers."""
    for x in inputs:
        sizes = x.shape if isinstance(x, torch.Tensor) else (x,)
        env = next((s.node.shape_env for s in sizes if isinstance(s, torch.SymInt)), None)
        memo = getattr(x, "item_memo", None)
        if env is None and isinstance(memo, torch.SymFloat):
            env = memo.node.shape_env
        if env is not None:
            return env
    return None


def known_conditions(environment: Any) -> tuple[int, frozenset[str]]:
    """The conditions that there are by now: how many Dynamo guards, and those of sizes that only the data decide."""
    return (
        (0, frozenset())
        if environment is None
        else (len(environment.guards), frozenset(conditions_of_data(environment)))
    )


def conditions_of_data(environment: Any) -> list[str]:
    """The conditions of sizes that only the data decide. Those that Dynamo's graph has are checked in each call."""
    return [str(one.expr) for asserts in environment.deferred_runtime_asserts.values() for one in asserts]


def since(environment: Any, before: tuple[int, frozenset[str]]) -> list[str]:
    """The conditions that were added to those of ``known_conditions``, as text."""
    if environment is None:
        return []
    return [
        *(str(g.expr) for g in environment.guards[before[0] :]),
        *sorted({*conditions_of_data(environment)} - before[1]),
    ]


@contextmanager
def note_assumptions(fakes: Sequence[object], assumed: list[str]) -> Iterator[None]:
    """What is assumed inside of numbers that come with a call goes to ``assumed`` as well."""
    environment = next((f.fake_mode.shape_env for f in fakes if isinstance(f, FakeTensor)), None)
    before = known_conditions(environment)
    yield
    assumed += since(environment, before)


@contextmanager
def check_assumptions(inputs: Sequence[object]) -> Iterator[None]:
    """Raises Unsupported where more is assumed inside, of sizes that only the data decide, than a call checks."""
    shapes = environment(inputs)
    before = known_conditions(shapes)
    yield
    if known_conditions(shapes)[1] > before[1]:
        raise Unsupported("a program assumes more of a size that only the data decides than its call checks")


def install(environment: Any, conditions: Sequence[str]) -> None:
    """Ask the same questions again. Raises Unsupported where an answer for the example is another than that of the
    program's own trace: ``hints`` would have to tell the two apart."""
    if environment is None:
        return
    symbols = {str(s): s for s in environment.var_to_range}
    for text in conditions:
        if not environment.evaluate_expr(relation_text.read(text, symbols)):
            raise Unsupported(f"a program that was compiled where {text} was looked up where it is not so")


def _symbolic(inputs: Sequence[object]) -> dict[str, Any]:
    sizes = [s for x in inputs for s in (x.shape if isinstance(x, torch.Tensor) else (x,))]
    return {str(s): s for s in sizes if isinstance(s, torch.SymInt)}


def least(inputs: Sequence[object]) -> dict[str, int]:
    """What the sizes are at least in all calls, where that is more than 0: PyTorch's own ranges, which it guards."""
    ranges = getattr(environment(inputs), "var_to_range", {})
    symbols = {name: s.node.expr for name, s in _symbolic(inputs).items() if s.node.expr.is_Symbol}
    bounds = {str(s): ranges[s].lower for s in symbols.values() if s in ranges}
    return {name: int(lower) for name, lower in bounds.items() if lower.is_Integer and lower > 0}


def example(value: Any) -> int:
    """A size in the call that is compiled for; of one that only the data decide, what it is at most."""
    if not isinstance(value, torch.SymInt):
        return int(value)
    if value.node.has_hint():
        return int(value.node.hint)
    most = upper_bound(value.node.expr, value.node.shape_env.var_to_range)
    return int(most) if most.is_Integer and most < _MANY else _MANY


def hints(inputs: Sequence[object], placeholders: Sequence[fx.Node]) -> list[str]:
    """What the symbolic sizes and numbers are in the example, and at least: these decide what a trace assumes."""
    symbolic = _symbolic(inputs)
    memos = {k: getattr(x, "item_memo", None) for k, x in enumerate(inputs)}
    numbers = [f"{k}: {m.node.hint!r}" for k, m in memos.items() if m is not None and _is_read(m, placeholders[k])]
    least_sizes = [f"{name}>={lower}" for name, lower in sorted(least(inputs).items())]
    return [*(f"{name}={s.node.hint}" for name, s in sorted(symbolic.items())), *numbers, *least_sizes]


def _is_read(number: torch.SymInt | torch.SymFloat, tensor: fx.Node) -> bool:
    """Whether a trace can depend on the number that a tensor without axes holds: an index that it is has been made a
    constant by now. One that is an operand alone (a step of a schedule) decides nothing."""
    if isinstance(number, torch.SymFloat) or number.node.expr.is_number:
        return True
    return any(user.target == "item" for user in tensor.users)


def keep_key_order() -> None:
    """Let Dynamo, while it compiles, guard the order of each dictionary whose keys it guards: it does not by itself
    where one is passed on as ``**kwargs``, and a callee that goes through them would get the order of another call."""
    output = current_translator().output
    output.guard_on_key_order.update(
        g.originating_source for g in output.guards if g.create_fn_name() == KEYS_OF_DICTIONARY
    )
