"""``training_step``: forward, loss, backward and update of a model as one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from daceopt.errors import (
    ArgumentsChanged,
    CaptureError,
    DaceoptError,
    EarlierCallFailed,
    MemoryBudgetError,
    RunError,
    Unsupported,
    WorkerError,
)
from daceopt.modules import options as checked
from daceopt.modules.dispatch import Dispatcher, note
from daceopt.modules.module import Handle, optimized_module
from daceopt.modules.options import Options
from daceopt.training import obstacles
from daceopt.training.binder import Binder, StepOptions
from daceopt.training.objective import Objective, check_loss, target_count
from daceopt.training.refusals import Refusals
from daceopt.training.sharded_state import ShardedState
from daceopt.training.step_exchange import StepExchange, exchange_of

if TYPE_CHECKING:
    from daceopt.modules.backend import Backend
    from daceopt.modules.fast_path import CompiledForward
    from daceopt.modules.piece import CompiledPiece
    from daceopt.passes.recipe import Recipe
    from daceopt.training.step_graph import StepBackend


def training_step(
    model: nn.Module,
    loss: Callable[..., torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    *,
    targets: int | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    keep_gradients: bool = False,
    scaler: torch.amp.GradScaler | None = None,
    recipe: str | Recipe = "auto",
    dynamic: object = None,
    fallback: str = "warn",
    verify: str | None = None,
    memory_budget: int | str | None = None,
    tune: bool | float | str | None = None,
) -> TrainingStep:
    """``step(*inputs, *targets) -> loss``: what ``zero_grad``, forward, ``backward`` and ``optimizer.step`` do in turn,
    as one program where that is possible.

    loss            called with the model's result and the targets; None: the model's result is the loss
    targets         how many of the last arguments are the loss's (None: as many as it has parameters without a default,
                    but the first); named arguments go to the model
    clip_norm       the most that the norm of all gradients may be together, as in ``clip_grad_norm_``
    clip_value      the most that each element of a gradient may be, as in ``clip_grad_value_``
    accumulate      only every so many calls update, by the mean of their gradients, which ``.grad`` collects
    keep_gradients  whether ``.grad`` has the gradients (as clipped) after an update; otherwise it is None
    scaler          scales the loss, and decides by the gradients whether a step updates: such a step runs in parts
    recipe, dynamic, fallback, verify, tune    as for ``optimized_module``. What cannot be one program runs in parts:
                    the compiled forward and backward, then PyTorch's own update
                    (of ``data_parallel``, ``tune`` is its own)
    memory_budget   as for ``optimized_module``; a share is of what eager PyTorch saves and of the gradients

    Raises TypeError and ValueError for what is no model, optimizer or loss, and for an optimizer that has no parameter
    of the model.
    """
    options = checked.check(recipe, None, dynamic, fallback, verify, tune, memory_budget)
    _check(model, loss, optimizer)
    step = _step_options(clip_norm, clip_value, accumulate, keep_gradients, scaler)
    return TrainingStep(Objective(model, loss, _target_count(loss, targets)), Binder(optimizer, step), options)


class TrainingStep:
    """A step of one model and optimizer: see :func:`training_step` for its options.

    Parameters and the optimizer's state stay PyTorch's own tensors, written in place, and its groups are read at every
    call: ``state_dict``, schedulers and checkpoints work as before. The loss comes back detached. Gradients that stood
    there before are dropped; parameters that the optimizer does not have get none.

    Compiled are the updates of SGD, Adam and AdamW with parameters of float32, float64, bfloat16 and float16; in half
    types they are computed in float32 and rounded once. A call that raises leaves parameters and state as they were.
    """

    def __init__(self, objective: Objective, binder: Binder, options: Options) -> None:
        self._objective, self._binder, self._options = objective, binder, options
        own = replace(options, backward=None, fallback="raise")
        self._exchange = exchange_of(objective.model)
        binder.shards = None if self._exchange is None else ShardedState(binder.optimizer, self._exchange)
        self._dispatcher = _StepDispatcher(own, binder, self._exchange)
        self._permanent = obstacles.permanent(objective.model, binder.optimizer, binder.options.scaler)
        self._refusals = Refusals()
        self._parts: Any = None
        self.reasons: dict[str, int] = {}  # why calls ran in parts, and how many for each reason
        self.daceopt = Handle(objective, self._dispatcher)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have a model and an optimizer of their own, and compile anew."""
        return TrainingStep, (self._objective, self._binder, self._options)

    @property
    def objective(self) -> Objective:
        """The model and its loss as one module."""
        return self._objective

    @property
    def binder(self) -> Binder:
        """What reads and updates the optimizer."""
        return self._binder

    @property
    def model(self) -> nn.Module:
        return self._objective.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._binder.optimizer

    def __call__(self, *arguments: object, **kwargs: object) -> torch.Tensor:
        """One step on a batch, or a micro-batch; the loss, detached."""
        reason = self._permanent or obstacles.of_call(self.optimizer) or (self._exchange and self._exchange.refusal)
        is_known = not self._refusals or self._dispatcher.knows(self._objective, arguments, kwargs)
        reason = reason or (None if is_known else self._refusals.reason(self._objective, arguments, kwargs))
        if not reason:
            try:
                return self._whole(arguments, kwargs)
            except (ArgumentsChanged, EarlierCallFailed, MemoryBudgetError, WorkerError):
                raise
            except RunError as error:  # of this call, which PyTorch has an error for; nothing was changed
                loss = self._in_parts(arguments, kwargs)
                self._note(str(error))
                return loss
            except DaceoptError as error:
                reason = str(error).splitlines()[0]
                self._refusals.add(self._objective, arguments, kwargs, reason)
        if self._options.fallback == "raise":
            raise Unsupported(f"no training step of one program: {reason}")
        loss = self._in_parts(arguments, kwargs)
        self._note(reason)
        return loss

    def _whole(self, arguments: tuple[object, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        dispatcher = self._dispatcher
        ran = dispatcher.ran
        with nullcontext() if self._exchange is None else self._exchange.whole():
            loss = dispatcher.call(self._objective, Objective.forward, arguments, kwargs)
        if dispatcher.ran == ran:
            raise CaptureError("nothing in it was compiled")
        return loss

    @contextmanager
    def observe(self) -> Iterator[list[tuple[CompiledPiece, list[Any]]]]:
        """Within the block each call of a compiled step adds its program and what that is given."""
        backend = self._dispatcher.backend
        backend.observed = []
        try:
            yield backend.observed
        finally:
            backend.observed = None

    def gather_state(self, to: int | None = None) -> None:
        """Before a checkpoint of an optimizer that updates in shards: its state as PyTorch has it, on all ranks, or on
        rank ``to`` of the group alone. Each rank has that of its own part otherwise (``data_parallel`` with such a
        strategy). All ranks call it; the next step takes apart what is whole. Without shards nothing happens.

        Raises WorkerError where a rank does something else, ValueError for a rank that the group does not have.
        """
        if self._binder.shards is not None:
            self._binder.shards.gather(to)

    # ---------------------------------------------------------------- in parts

    def _in_parts(self, arguments: tuple[object, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """The same with PyTorch's own update."""
        binder, options = self._binder, self._binder.options
        if self._parts is None:
            objective = Objective(self.model, self._objective.loss, self._objective.targets)
            chosen = self._options
            self._parts = optimized_module(
                objective,
                recipe=chosen.recipe,
                dynamic=chosen.dynamic,
                fallback=chosen.fallback,
                verify=chosen.verify,
                tune=chosen.tune,
            )
        self.gather_state()
        updates = binder.is_last
        if binder.batch == 0:
            self.optimizer.zero_grad()
        loss = check_loss(self._parts(*arguments, **kwargs))
        scaler = options.scaler or torch.amp.GradScaler("cpu", enabled=False)
        scaler.scale(loss / options.accumulate if options.accumulate > 1 else loss).backward()
        if updates:
            scaler.unscale_(self.optimizer)
            self._clip()
            scaler.step(self.optimizer)
            scaler.update()
            if not options.keep_gradients:
                self.optimizer.zero_grad()
        binder.batch = 0 if updates else binder.batch + 1
        return loss.detach()

    def _clip(self) -> None:
        options = self._binder.options
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if options.clip == "norm":
            nn.utils.clip_grad_norm_(parameters, options.bound)
        if options.clip == "value":
            nn.utils.clip_grad_value_(parameters, options.bound)

    def _note(self, reason: str) -> None:
        message = f"a step of {type(self.model).__name__} runs in parts: {reason}"
        note(self.reasons, reason, message, self._options.fallback)

    def __repr__(self) -> str:
        return f"<training step of {type(self.model).__name__} with {type(self.optimizer).__name__}>"


class _StepDispatcher(Dispatcher):
    """Dispatches calls of an objective to programs that also update."""

    is_alone = False

    def __init__(self, options: Options, binder: Binder, exchange: StepExchange | None) -> None:
        super().__init__(options)
        self._binder, self._exchange = binder, exchange
        self._earlier: list[CompiledForward] = []  # which have programs, before a call that was refused

    def knows(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
        """Whether a call has been compiled already."""
        return self._find(module, args, kwargs) is not None

    def _find(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        current = [] if self._compiled is None else [self._compiled]
        programs = (c.find((module, *args), kwargs) for c in (*current, *self._earlier))
        return next((program for program in programs if program is not None), None)

    def _run(
        self, compiled: CompiledForward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> Any:
        program = self._find(module, args, kwargs)
        return super()._run(compiled, module, args, kwargs) if program is None else program(module, *args, **kwargs)

    def _forget(self, compiled: CompiledForward) -> None:
        if compiled.count and all(c is not compiled for c in self._earlier):
            self._earlier.append(compiled)
        super()._forget(compiled)

    @property
    def backend(self) -> StepBackend:
        """What compiles its graphs. Raises CaptureError where nothing was compiled yet."""
        if self._compiled is None:
            raise CaptureError("nothing was compiled yet; call the step first")
        return cast("StepBackend", self._compiled.backend)

    @property
    def ran(self) -> int:
        """Calls of compiled steps so far."""
        return 0 if self._compiled is None else self._compiled.backend.ran

    def _backend(self) -> Backend:
        from daceopt.training.step_graph import StepBackend

        backend = StepBackend(self.options, self.stats, self._refuse)
        backend.binder, backend.exchange = self._binder, self._exchange
        return backend


def _check(model: object, loss: object, optimizer: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"training_step takes an nn.Module, not {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"training_step takes a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss is of type {type(loss).__name__}; expected a function, a module or None")
    own = {id(p) for m in (model, loss) if isinstance(m, nn.Module) for p in m.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise ValueError(
            f"the optimizer has no parameter of {type(model).__name__}; expected one that was made with its parameters"
        )


def _step_options(norm: Any, value: Any, accumulate: Any, keep: Any, scaler: Any) -> StepOptions:
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"scaler is of type {type(scaler).__name__}; expected a torch.amp.GradScaler or None")
    if norm is not None and value is not None:
        raise ValueError("clip_norm and clip_value are given; expected one of them")
    for name, bound in (("clip_norm", norm), ("clip_value", value)):
        if bound is not None and not (isinstance(bound, int | float) and bound >= 0):
            raise ValueError(f"{name}={bound!r}; expected a number of 0 or more")
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise ValueError(f"accumulate={accumulate!r}; expected an integer of 1 or more")
    clip = "norm" if norm is not None else "value" if value is not None else None
    return StepOptions(clip, float(norm if norm is not None else value or 0), accumulate, bool(keep), scaler)


def _target_count(loss: Any, targets: Any) -> int:
    if targets is not None and (not isinstance(targets, int) or isinstance(targets, bool) or targets < 0):
        raise ValueError(f"targets={targets!r}; expected None or an integer of 0 or more")
    return target_count(loss, targets)
