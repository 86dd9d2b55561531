"""What a call of a training step reads of its optimizer: groups, states, numbers; and what it leaves there.

Schedulers, ``load_state_dict`` and users change all of it between calls: what is known of the last call is compared
with how things are, tensor by tensor. Nothing is changed before the program has run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from daceopt.errors import Unsupported
from daceopt.training.optimizers import BY_CLASS, RULES
from daceopt.training.sharded_state import ShardedState, place_of
from daceopt.training.step_counts import StepCounts
from daceopt.training.update_plan import COLUMNS, Updated, UpdatePlan

_TYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "float32", torch.float16: "float32"}
"""In which type the update of a parameter is computed."""


@dataclass(frozen=True)
class StepOptions:
    """How a step treats its gradients: see ``training_step``."""

    clip: str | None = None
    bound: float = 0.0
    accumulate: int = 1
    keep_gradients: bool = False
    scaler: torch.amp.GradScaler | None = None


@dataclass
class Bound:
    """A call: its ``plan``, the ``tensors`` that its program takes after the graph's arguments, and what to do with the
    results once it has run. ``arguments``: of each parameter its position in the graph."""

    plan: UpdatePlan
    tensors: list[torch.Tensor]
    fresh: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = field(default_factory=list)
    steps: list[torch.Tensor] = field(default_factory=list)


class Binder:
    """Reads and updates one optimizer; ``batch`` counts the micro-batches since the last update; ``shards``: its state
    on several ranks."""

    shards: ShardedState | None = None

    def __init__(self, optimizer: torch.optim.Optimizer, options: StepOptions) -> None:
        self.optimizer, self.options = optimizer, options
        self.rule = RULES.get(BY_CLASS.get(type(optimizer), ""))
        self.batch = 0
        self.counts = StepCounts()
        self._latest: tuple[Any, list[tuple[int, torch.Tensor]], _Call] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Binder, (self.optimizer, self.options), {"batch": self.batch}

    @property
    def is_last(self) -> bool:
        """Whether the next call updates."""
        return self.batch + 1 >= self.options.accumulate

    def waiting(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Which others an update by the next call is for: earlier micro-batches have collected gradients of them."""
        if not (self.batch and self.is_last):
            return []
        members = {id(p) for p in parameters}
        everything = (p for group in self.optimizer.param_groups for p in group["params"])
        return [p for p in everything if p.grad is not None and id(p) not in members]

    def bind(self, parameters: Sequence[tuple[int, torch.Tensor]], waiting: Collection[int] = ()) -> Bound:
        """The call on these (argument of the graph, parameter) pairs; those that the optimizer does not have are left
        out. ``waiting``: arguments of which the graph has no gradient. Raises Unsupported for a parameter or state that
        no rule is for."""
        assert self.rule is not None  # others are refused before
        flags = [self.rule.flags(group) for group in self.optimizer.param_groups]
        groups = [id(p) for group in self.optimizer.param_groups for p in group["params"]]
        key = self.is_last, self.batch > 0, flags, groups, [(k, id(p)) for k, p in parameters]
        again = self._latest[2].again() if self._latest is not None and self._latest[0] == key else None
        if again is not None:
            return again
        call = _Call(self, flags, parameters, waiting)
        self._latest = key, list(parameters), call  # which keeps the parameters, so that no other has their identity
        return call.bound

    def forget(self) -> None:
        """Look at everything again in the next call: what is updated in shards has changed."""
        self._latest = None

    def finish(self, bound: Bound, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """After the program has run: the optimizer's state is that of after the call, and so are the ``gradients``,
        (parameter, its gradient) pairs of those that are new tensors."""
        if bound.plan.updates:
            if self.shards is not None and any(p.shard for p in bound.plan.parameters):
                self.shards.spread()
            for parameter, state in bound.fresh:
                self.optimizer.state[parameter].update(state)
            if bound.steps:
                self.counts.advance(bound.steps)
            self.optimizer._opt_called = True  # what schedulers ask for
        self.settle(bound.plan.updates)
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def settle(self, updated: bool) -> None:
        """Count a micro-batch; what was collected or stood there before goes with the update."""
        if updated or self.batch == 0:
            self.optimizer.zero_grad()
        self.batch = 0 if updated else self.batch + 1


class _Call:
    """Everything is looked at; :meth:`again` looks at what may have changed."""

    def __init__(
        self,
        binder: Binder,
        flags: Sequence[tuple[str, ...]],
        parameters: Sequence[tuple[int, torch.Tensor]],
        waiting: Collection[int],
    ) -> None:
        assert binder.rule is not None
        self._binder, self._rule, self._flags, optimizer = binder, binder.rule, flags, binder.optimizer
        self._groups = {id(p): k for k, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._rows: dict[tuple[int, bool, float], int] = {}
        self._numbers: list[tuple[float, ...]] = []
        options = binder.options
        self._updates, self._waiting = binder.is_last, waiting
        self._shards = binder.shards.elements() if binder.shards is not None and self._updates else {}
        if self._shards and options.keep_gradients:
            raise Unsupported("keep_gradients: no rank has whole gradients of what is updated in shards")
        self.bound = Bound(UpdatePlan((), 0), [])
        members = tuple(self._update(k, p) for k, p in parameters if id(p) in self._groups)
        seed, clip = 1.0 / options.accumulate, options.clip if self._updates else None
        keeps = options.keep_gradients and self._updates
        self.bound.plan = UpdatePlan(members, len(self._numbers), clip, seed, self._updates, keeps)
        self._members = [p for _, p in parameters if id(p) in self._groups]
        self.bound.tensors += self._tables(self._numbers)

    def _tables(self, numbers: Sequence[tuple[float, ...]]) -> list[torch.Tensor]:
        table = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        device = self._members[0].device if self._members else table.device  # a device's copy: nobody waits for it
        return [table.to(device, getattr(torch, dtype), non_blocking=True) for dtype in self.bound.plan.dtypes]

    def again(self) -> Bound | None:
        """The same call with the numbers and states of now; None where it is another one."""
        plan, tensors = self.bound.plan, self.bound.tensors
        if self.bound.fresh or self._binder.batch or not plan.updates:
            return None
        bound = Bound(plan, [])
        steps: dict[int, float] = {}
        for parameter, updated in zip(self._members, plan.parameters):
            state = self._binder.optimizer.state.get(parameter) or {}
            for name in updated.state:
                tensor = state.get(name)
                if tensor is not tensors[len(bound.tensors)]:
                    return None
                bound.tensors.append(tensor)
            if self._rule.counts:
                step = self._step(state, bound)
                if steps.setdefault(updated.row, step) != step:
                    return None
        keys = {row: key for key, row in self._rows.items()}
        groups = self._binder.optimizer.param_groups
        numbers = [self._coefficients(groups[keys[r][0]], steps.get(r, 0.0), False) for r in range(plan.rows)]
        bound.tensors += self._tables(numbers)
        return bound

    def _update(self, argument: int, parameter: torch.Tensor) -> Updated:
        if parameter.dtype not in _TYPES:
            raise Unsupported(f"a parameter is {parameter.dtype}; expected one of {', '.join(map(str, _TYPES))}")
        group = self._groups[id(parameter)]
        flags = self._flags[group]
        names = self._rule.state(flags)
        row = self._state(parameter, group, names) if self._updates else 0
        collected = parameter.grad if self._binder.batch else None
        if collected is not None:
            _check_dense("a gradient", collected, parameter)
            self.bound.tensors.append(collected)
        rule = BY_CLASS[type(self._binder.optimizer)]
        shard = self._shards.get(id(parameter), 0)
        dtype, accumulated, waits = _TYPES[parameter.dtype], collected is not None, argument in self._waiting
        return Updated(argument, dtype, rule, flags, names, row, accumulated, shard, waits)

    def _state(self, parameter: torch.Tensor, group: int, names: Sequence[str]) -> int:
        """Add the state of a parameter to the call; returns the row of its coefficients."""
        states = self._binder.optimizer.state.get(parameter) or {}
        missing = any(states.get(n) is None for n in names)
        is_fresh = missing and (not states or not self._rule.counts)  # half a state is none that PyTorch made
        if is_fresh:
            states = self._fresh(parameter, self._binder.optimizer.param_groups[group], names)
            self.bound.fresh.append((parameter, states))
        step = self._step(states, self.bound) if self._rule.counts else 0.0
        for name in names:
            if not isinstance(states.get(name), torch.Tensor):
                raise Unsupported(f"the optimizer's state has no {name} for a parameter")
            self.bound.tensors.append(self._of_this_rank(name, states[name], parameter))
        return self._row(group, is_fresh, step)

    def _of_this_rank(self, name: str, tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """A tensor of the state; the part of it that this rank updates, which takes its place."""
        shards, elements = self._binder.shards, self._shards.get(id(parameter), 0)
        if shards is None or not elements or place_of(tensor) is None:
            _check_dense(f"the optimizer's {name}", tensor, parameter)
        if shards is None or not elements:
            return tensor
        own = shards.own(tensor, elements)
        if own is not tensor:
            self.bound.fresh.append((parameter, {name: own}))
        return own

    def _fresh(self, parameter: torch.Tensor, group: dict[str, Any], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The state of a parameter that was not updated yet, as PyTorch makes it."""
        shards, elements = self._binder.shards, self._shards.get(id(parameter), 0)
        if shards is not None and elements:
            state = {n: shards.empty(parameter, elements) for n in names}
        else:
            state = {n: torch.zeros_like(parameter, memory_format=torch.preserve_format) for n in names}
        if not self._rule.counts:
            return state
        wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
        beside = parameter.device if group.get("fused") or group.get("capturable") else None
        return {"step": torch.tensor(0.0, dtype=torch.float64 if wide else torch.float32, device=beside), **state}

    def _step(self, state: dict[str, Any], bound: Bound) -> float:
        step = state.get("step")
        if not isinstance(step, torch.Tensor):
            raise Unsupported("the optimizer counts its steps in no tensor; expected one, as PyTorch makes it")
        bound.steps.append(step)
        return self._binder.counts.value(step) + 1

    def _row(self, group: int, is_fresh: bool, step: float) -> int:
        key = group, is_fresh, step
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._numbers)
            self._numbers.append(self._coefficients(self._binder.optimizer.param_groups[group], step, is_fresh))
        return row

    def _coefficients(self, group: dict[str, Any], step: float, is_fresh: bool) -> tuple[float, ...]:
        numbers = self._rule.coefficients(group, step, is_fresh)
        return (*numbers, *[0.0] * (COLUMNS - len(numbers) - 1), self._binder.options.bound)


def _check_dense(what: str, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
    if place_of(tensor) is not None:
        raise Unsupported(f"{what} is a shard of it, of a step whose strategy updates in shards")
    fits = tensor.shape == parameter.shape and tensor.dtype == parameter.dtype
    if not fits or tensor.layout is not torch.strided or tensor.device != parameter.device:
        actual = f"{tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}, {tensor.layout}"
        raise Unsupported(f"{what} is {actual}; expected what the parameter is")
