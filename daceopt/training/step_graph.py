"""The graph of an objective, compiled as a training step: its program also differentiates, and updates parameters."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from daceopt.capture.torch import eager_memory
from daceopt.capture.torch.connection import connections
from daceopt.capture.torch.traced import Traced
from daceopt.errors import DaceoptError, SizesError, Unsupported
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import reason_of
from daceopt.modules.by_size import SIZE_LIMIT, BySize
from daceopt.modules.description import identity
from daceopt.modules.piece import CompiledPiece
from daceopt.modules.repeated_call import repeatable
from daceopt.passes.choice import recipe_for
from daceopt.programs.tuning.search import Contender
from daceopt.runtime.binding import Binding, Output, Result
from daceopt.runtime.seeds import own_random_numbers
from daceopt.training.binder import Binder
from daceopt.training.step_exchange import StepExchange, TunedGraph, Tuner
from daceopt.training.update_plan import UpdatePlan
from daceopt.training.waiting import with_waiting

if TYPE_CHECKING:
    from daceopt.ir.control.imported import Imported, Reduction
    from daceopt.passes.recipe import Recipe
    from daceopt.programs.compiled import CompiledPair


PLAN_LIMIT = 16
"""Kinds of updates by one graph that have programs."""


class StepBackend(Backend):
    """Compiles the one graph of an objective as a step of ``binder``'s optimizer."""

    orders_arguments = False
    binder: Binder
    exchange: StepExchange | None = None
    observed: list[tuple[CompiledPiece, list[Any]]] | None = (
        None  # calls, for whoever looks at them: programs and inputs
    )

    def add(self, traced: Traced, inputs: Sequence[object]) -> Any:
        """A step for these arguments; its programs follow the optimizer's state."""
        graph = StepGraph(self, traced)
        graph.program(graph.bind_tuned(inputs).plan, inputs)  # what cannot be compiled is refused now
        return graph

    def leave(
        self, traced: Traced, error: BaseException, arguments: Sequence[object], is_repeated: bool = False
    ) -> Any:
        """Nothing has run: whoever called the step runs it in parts."""
        if isinstance(error, DaceoptError):
            raise error
        raise Unsupported(reason_of(error)) from error


class StepGraph:
    """Calls of one graph: a program for each kind of update that the optimizer asks for."""

    def __init__(self, backend: StepBackend, traced: Traced) -> None:
        self._backend, self.traced = backend, traced
        self._programs: dict[UpdatePlan, CompiledPiece | DaceoptError] = {}  # an error: why there is none
        self._latest: tuple[UpdatePlan, CompiledPiece] | None = None
        self._lock = threading.RLock()
        self._by_size: BySize | None = None  # for sizes that a program is not for
        self._trained = [*trained_arguments(traced), *traced.waiting]
        self._extended: dict[tuple[int, ...], tuple[StepGraph, list[Any]]] = {}  # which keeps those of these identities

    def bind(self, arguments: Sequence[object]) -> Any:
        """What the optimizer has for the parameters among the arguments."""
        return self._backend.binder.bind([(k, arguments[k]) for k in self._trained], self.traced.waiting)

    def bind_tuned(self, arguments: Sequence[object]) -> Any:
        """The same, once ranks have found out how to exchange the fastest, where they were told to."""
        bound, exchange = self.bind(arguments), self._backend.exchange
        if exchange is None or exchange.tuner is None or self._reduction(bound.plan, arguments) is None:
            return bound
        self._tune_exchange(exchange, exchange.tuner, bound.plan, arguments)
        return self.bind(arguments)

    def _tune_exchange(
        self, exchange: StepExchange, tuner: Tuner, plan: UpdatePlan, arguments: Sequence[object]
    ) -> None:
        reduction = self._reduction(plan, arguments)

        def make(recipe: Recipe) -> Contender:
            self._backend.binder.forget()
            own = self.bind(arguments)  # with states in shards, where the strategy says so
            program = CompiledPiece(self.traced, self._pair(own.plan, reduction, recipe))
            call = repeatable(program.run, [*arguments, *own.tensors], self.traced.requires_grad)
            return Contender(call, program.pair.code)

        load = partial(imported_step, self.traced, plan, reduction)
        graph = TunedGraph(self._identity(plan), load, True, self._backend.options.recipe)
        with own_random_numbers(arguments):
            self._backend.stats.record_tuning(tuner(graph, make))
        self._backend.binder.forget()

    def _identity(self, plan: UpdatePlan) -> str:
        return f"{identity(self.traced)} {plan}"

    def _with(self, waiting: list[Any], arguments: Sequence[object]) -> StepGraph:
        """The same for an update of more parameters than the graph has gradients of."""
        key = tuple(id(p) for p in waiting)
        with self._lock:
            if key not in self._extended:
                if len(self._extended) >= SIZE_LIMIT:
                    reason = f"there are steps for {SIZE_LIMIT} sets of parameters of earlier micro-batches already"
                    raise Unsupported(reason)
                self._extended[key] = StepGraph(self._backend, with_waiting(self.traced, arguments, waiting)), waiting
            return self._extended[key][0]

    def program(self, plan: UpdatePlan, arguments: Sequence[object]) -> CompiledPiece:
        """The program for ``plan``, compiled at its first call. Raises DaceoptError where it cannot be, each time."""
        latest = self._latest
        if latest is not None and latest[0] == plan:
            return latest[1]
        with self._lock:
            program = self._programs.get(plan)
            if program is None:
                if len(self._programs) >= PLAN_LIMIT:
                    raise Unsupported(f"there are programs for {PLAN_LIMIT} kinds of update already")
                program = self._programs[plan] = self._make(plan, arguments)
            if isinstance(program, DaceoptError):
                raise program.with_traceback(None)
            self._latest = plan, program
        return program

    def _make(self, plan: UpdatePlan, arguments: Sequence[object]) -> CompiledPiece | DaceoptError:
        try:
            return self._compile(plan, arguments)
        except DaceoptError as error:
            return error

    def _compile(self, plan: UpdatePlan, arguments: Sequence[object]) -> CompiledPiece:
        reduction = self._reduction(plan, arguments)
        recipe = None if self._backend.options.tune is None or reduction is not None else self._tune(plan, arguments)
        program = CompiledPiece(self.traced, self._pair(plan, reduction, recipe))
        self._backend.keep(program, [*arguments, *self.bind(arguments).tensors])
        return program

    def _tune(self, plan: UpdatePlan, arguments: Sequence[object]) -> Recipe | None:
        """The fastest recipe as measured, on copies of parameters and states."""
        backend, tensors = self._backend, [*arguments, *self.bind(arguments).tensors]

        def make(recipe: Recipe) -> Contender:
            program = CompiledPiece(self.traced, self._pair(plan, None, recipe))
            return Contender(repeatable(program.run, tensors, self.traced.requires_grad), program.pair.code)

        recipe = recipe_for(self.traced.device, backend.options.recipe)
        return backend.tune(self._identity(plan), recipe, make, tensors, trains=True)

    def _pair(self, plan: UpdatePlan, reduction: Reduction | None, recipe: Recipe | None = None) -> CompiledPair:
        backend, traced = self._backend, self.traced
        options, exchange, fingerprint = backend.options, backend.exchange, self._identity(plan)
        load = partial(imported_step, traced, plan, reduction)
        if exchange is None or reduction is None:
            chosen = recipe or recipe_for(traced.device, options.recipe)
            return backend.compile(fingerprint, load, recipe=chosen)
        if options.verify == "numerics":
            raise Unsupported("verify='numerics': the numbers of an exchange cannot be compared on one rank")
        chosen = recipe or exchange.step_recipe(options.recipe, fingerprint)
        return exchange.watch_pair(backend.compile(f"{fingerprint} {reduction}", load, recipe=chosen))

    def _reduction(self, plan: UpdatePlan, arguments: Sequence[object]) -> Reduction | None:
        """Gradients that are collected stay those of this rank until the step that updates."""
        exchange = self._backend.exchange
        if exchange is None or not plan.updates:
            return None
        return exchange.reduction({p.argument: arguments[p.argument] for p in plan.parameters})

    def __call__(self, *arguments: object) -> Sequence[Any]:
        """The results of the graph, the loss among them; parameters and the optimizer's state are updated. Raises
        RunError, and changes nothing, where the program reports an error."""
        waiting = self._backend.binder.waiting(arguments[k] for k in self._trained)
        if waiting:
            return self._with(waiting, arguments)(*arguments, *_others(waiting, arguments))
        bound = self.bind_tuned(arguments)
        program = self.program(bound.plan, arguments)
        if self._backend.observed is not None:
            self._backend.observed.append((program, program.inputs([*arguments, *bound.tensors])))
        try:
            results = program(*arguments, *bound.tensors)
        except SizesError as error:
            self._by_size = self._by_size or self._backend.by_size(self.traced, error)
            return self._by_size(*arguments)
        parameters = [p for p in bound.plan.parameters if bound.plan.updates or not p.accumulated]
        count = len(self.traced.results)
        self._backend.binder.finish(bound, [(arguments[p.argument], g) for p, g in zip(parameters, results[count:])])
        self._backend.ran += 1
        return results[:count]


def _others(tensors: Sequence[object], arguments: Sequence[object]) -> list[Any]:
    """Those that are no arguments yet."""
    identities = {id(x) for x in arguments}
    return [t for t in tensors if id(t) not in identities]


def imported_step(
    traced: Traced, plan: UpdatePlan, reduction: Reduction | None = None, target: str = "cpu"
) -> Imported:
    """The graph of an objective, with what follows it: its gradients, and the update by them."""
    from daceopt.capture.torch.importing import load
    from daceopt.ir.control.imported import Gradients
    from daceopt.training.update_graph import GraphUpdate

    def eager_bytes() -> int:
        """Bytes that eager PyTorch saves for the backward, and those of the gradients."""
        parameters = [traced.inputs[p.argument] for p in plan.parameters]
        return eager_memory.saved_bytes(traced) + sum(p.numel() * p.element_size() for p in parameters)

    imported = load(traced, target)
    binding = Binding.from_json(imported.notes["binding"])
    loss = _loss_output(binding)
    for changed in {p.argument for p in plan.parameters} & {argument for argument, _ in binding.mutations}:
        raise Unsupported(f"{traced.names[changed]}, which the optimizer updates, is written in forward")
    position = {argument: k for k, (kind, argument) in enumerate(binding.inputs) if kind == "tensor"}
    inputs = tuple(position[p.argument] for p in plan.parameters)
    sizes = imported.gradients.sizes if imported.gradients is not None else {}
    update = GraphUpdate(plan, reduction)
    imported.gradients = Gradients(inputs, (loss,), "recompute", update, sizes, eager_bytes)
    imported.notes["binding"] = extend(binding, plan, traced).to_json()
    return imported


def trained_arguments(traced: Traced) -> list[int]:
    """The parameters among the arguments on which the loss depends. Raises Unsupported where the graph is no objective
    that a step can be made of."""
    results = traced.graph.graph.output_node().args[0]
    differentiable = [k for k, flag in enumerate(traced.results) if flag]
    if len(differentiable) != 1:
        raise Unsupported(f"{len(differentiable)} results of the objective require a gradient; expected one, the loss")
    value = results[differentiable[0]].meta["example_value"]
    if value.numel() != 1 or not value.is_floating_point():
        raise Unsupported(f"the loss is {value.dtype} of shape {list(value.shape)}; expected one floating-point number")
    others = [n for n, g, s in zip(traced.names, traced.requires_grad, traced.is_state) if g and not s]
    if others:
        raise Unsupported(f"{others[0]}, an argument of the call, requires a gradient")
    binding = Binding((), (), tuple(Result("output", k) for k in range(len(results))), ())
    return [k for k, outputs in connections(traced, binding).arguments.items() if outputs]


def _loss_output(binding: Binding) -> int:
    """The output of the program that is the loss. Raises Unsupported where autograd would see another, too."""
    differentiable = [k for k, output in enumerate(binding.outputs) if output.differentiable]
    changed = {output for _, output in binding.mutations}
    if len(differentiable) != 1 or changed.intersection(differentiable):
        raise Unsupported("what the call changes depends on parameters, with a gradient")
    return differentiable[0]


def extend(binding: Binding, plan: UpdatePlan, traced: Traced) -> Binding:
    """The binding with the inputs and outputs that ``update_graph`` adds, in its order."""
    first = len(traced.inputs)
    inputs, outputs = list(binding.inputs), [replace(o, differentiable=False) for o in binding.outputs]
    results, mutations = list(binding.results), list(binding.mutations)
    arguments: list[tuple[int, ...]] = []  # per parameter the arguments that are its states, then what was collected
    for parameter in plan.parameters:
        count = len(plan.states(parameter)) + parameter.accumulated
        arguments.append(tuple(range(first, first + count)))
        first += count
    inputs += [("tensor", k) for k in range(len(traced.inputs), first + len(plan.dtypes))]
    for parameter, own in zip(plan.parameters, arguments):
        order = tuple(range(traced.inputs[parameter.argument].dim()))
        orders = [order, *([(0,)] if parameter.shard else [order]) * len(plan.states(parameter))]
        changed = [parameter.argument, *own[: len(parameter.state)]] if plan.updates else list(own)
        mutations += [(a, len(outputs) + k) for k, a in enumerate(changed)]
        if plan.returns_gradients and (plan.updates or not own):
            results.append(Result("output", len(outputs) + len(changed)))
        orders = orders if plan.updates else [order] * len(own)
        orders += [order] * (plan.keeps if plan.updates else not own)
        outputs += [Output(o, False) for o in orders]
    return replace(
        binding, inputs=tuple(inputs), outputs=tuple(outputs), results=tuple(results), mutations=tuple(mutations)
    )
