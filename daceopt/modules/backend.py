"""The backend of TorchDynamo: each graph that it extracts becomes a compiled piece, or stays in eager with a reason."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from daceopt import pipeline
from daceopt.capture.torch import conditions, cutting, decided, effects, guards, inner_leaves, items, numbers, tracing
from daceopt.capture.torch.argument_order import in_order, put_in_order
from daceopt.capture.torch.collection import resume
from daceopt.capture.torch.lifting import lift_tensors
from daceopt.capture.torch.traced import Traced
from daceopt.errors import WRONG_CALL, RunError, SizesError, Unsupported
from daceopt.modules import breaks, frames, repeated_call, written_frames
from daceopt.modules.breaks import Break, Breaks, reason_of, versions
from daceopt.modules.by_size import BySize, own_mode
from daceopt.modules.description import describe, identity, is_symbolic
from daceopt.modules.options import Options
from daceopt.modules.piece import OVERLAP, CompiledPiece
from daceopt.modules.small_graphs import FOLLOWS, CallEstimate, estimate, while_small
from daceopt.passes.choice import Choice, recipe_for
from daceopt.passes.recipe import Recipe
from daceopt.programs.stats import Stats
from daceopt.programs.tuning.result import TuningRecord
from daceopt.programs.tuning.search import Contender, Make, Search
from daceopt.runtime import absent_gradients
from daceopt.runtime.binding import Binding, ResultStage
from daceopt.runtime.places import device_of
from daceopt.runtime.seeds import own_random_numbers
from daceopt.torch_internals.dynamo_tracing import RestartAnalysis, current_translator, frame_count
from daceopt.torch_internals.fx_tracing import compile_forward

if TYPE_CHECKING:
    from daceopt.ir.control.imported import Imported, Reduction
    from daceopt.programs.compiled import CompiledPair
    from daceopt.programs.derivation import Load

logger = logging.getLogger("daceopt.dispatch")

Refused = Callable[[Break, BaseException], None]

tracing.install()
written_frames.install()

HigherCall = tuple["CompiledGraph | BySize", Sequence[int], Sequence["int | None"]]
"""A graph of gradients, which gradients of outputs it takes, and its result for each input of the program."""

_CALLS = ("call_function", "call_method", "call_module")


class Backend(Breaks):
    """Compiles graphs with the given options; ``graphs`` are those compiled so far, the latest last.

    ``refused`` is called with the reason and the error where a graph stays in eager PyTorch; it may raise.
    """

    daceopt_backend = True  # what ``tracing`` knows its graphs by
    leaves_small = True  # whether a graph of little work stays in eager PyTorch where the recipe is for us to choose

    def __init__(self, options: Options, stats: Stats, refused: Refused) -> None:
        super().__init__()
        self.options, self.stats, self._refused = options, stats, refused
        self.graphs: list[CompiledPiece] = []
        self.sizes = frames.no_sizes()  # that its frames were called with: what is compiled anew has them still
        self.entry: Any = None  # the code with which a call begins that is repeated where its first program fails
        self.ran = 0  # calls of compiled graphs, to tell a call that ran none
        self.is_weighed = False  # whether somebody wants to know what these save
        self.gained = 0.0  # microseconds at most, since somebody began to count

    orders_arguments = True
    """Whether graphs without gradients take weights as in memory: not where arguments are known by identity."""

    @staticmethod
    def frames() -> int:
        """How many pieces of code Dynamo has looked at."""
        return frame_count()

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[object], **_: object) -> Callable[..., Any]:
        """Dynamo's interface: a callable for ``graph``, which takes its placeholders and gives a sequence."""
        start = time.perf_counter()
        guards.keep_key_order()
        try:
            with resume():
                return self._compile(graph, inputs)
        except RestartAnalysis:
            raise
        except Exception as error:  # whatever it is, the user's call is not lost
            if cutting.is_cut(graph):
                if decided.is_repeated():
                    raise
                items.leave_all()
            self._refused(breaks.of_error(error, breaks.part_of(graph), reason_of(error)), error)
            return self._as_written(graph)
        finally:
            self.stats.compile_seconds += time.perf_counter() - start

    @property
    def is_repeated(self) -> bool:
        """Whether somebody repeats, in eager PyTorch, a call in which the program that is made now fails."""
        return self.entry is not None and self._code is self.entry

    @property
    def raises_again(self) -> bool:
        """Whether somebody makes a call again, in eager PyTorch, in which the first program raises."""
        return self.is_repeated or (self.entry is not None and self.options.fallback == "raise")

    def _as_written(self, graph: fx.GraphModule) -> Callable[..., Any]:
        """Python runs the frame, and Dynamo what that calls; the graph, which may mean something else, never runs."""
        written_frames.leave(graph, self.stats.count_eager)
        self._broken.add(self._code)
        return self.eager(graph.forward)

    def eager(self, forward: Callable[..., Any], is_chosen: bool = False) -> Callable[..., Any]:
        """A graph that runs in eager PyTorch, refused or fastest there (``is_chosen``); its calls are counted."""
        count = self.stats.count_eager

        def run(*arguments: object) -> object:
            count(is_chosen=is_chosen)
            return forward(*arguments)

        return run

    def _compile(self, graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        conditions.install()
        inner_leaves.check(graph.graph)
        if not any(n.op in _CALLS for n in graph.graph.nodes):
            return graph.forward
        whole, held = lift_tensors(graph)
        orders: dict[int, tuple[int, ...]] = {}
        if cutting.is_cut(whole):
            program = self._in_parts(whole, [*inputs, *held])
        else:
            results = [getattr(n, "meta", {}).get("example_value") for n in graph.graph.output_node().args[0]]
            items.leave(current_translator().output, *results)
            if self.orders_arguments and not any(getattr(x, "requires_grad", False) for x in results):
                whole, orders = put_in_order(whole, [*inputs, *held])
            first_arguments = in_order([*inputs, *held], orders)
            traced, arguments_given = describe(whole, first_arguments), [_concrete(x) for x in first_arguments]
            program = self._program(traced, arguments_given)
        if orders:
            return lambda *arguments: program(*in_order([*arguments, *held], orders))
        return (lambda *arguments: program(*arguments, *held)) if held else program

    def _in_parts(self, graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        """Programs between the calls that decide sizes; see ``cutting``."""
        count = len(self.graphs)
        try:
            with own_mode():
                make = lambda part, values: self.part(describe(part, values))  # noqa: E731
                outer = cutting.in_parts(graph, inputs, make, may_fail=self.is_repeated)
        except Exception:
            del self.graphs[count:]
            raise
        for part in self.graphs[count:]:
            self.stats.record(part.pair, _shapes(part))
        return partial(self._call_in_parts, outer.forward, self.raises_again)

    def _call_in_parts(self, forward: Callable[..., Any], is_repeated: bool, *arguments: object) -> object:
        """Raises Differs, and what the user's code raises: eager PyTorch may make the call if nothing has changed."""
        ran, before = self.ran, versions(arguments)
        try:
            return forward(*arguments)
        except Exception as error:  # of a call between the parts, too
            self.ran = ran
            setattr(error, WRONG_CALL, is_repeated and versions(arguments) == before)
            raise

    def part(self, traced: Traced) -> Callable[..., Any]:
        """Compile a part of a graph, whose sizes no call has told yet."""
        with guards.check_assumptions(traced.inputs):
            graph = self.graph(traced)
        graph.is_estimated = False
        self.graphs.append(graph)
        return graph.__call__

    def _program(self, traced: Traced, inputs: Sequence[object]) -> Callable[..., Any]:
        with own_mode():
            try:
                function = self.add(traced, inputs)
            except Exception as error:
                items.leave_all()
                numbers.specialise(traced.inputs)
                if not is_symbolic(traced):
                    raise
                by_size = self.by_size(traced, error)
                by_size.prepare(inputs)
                return by_size
        return function

    def by_size(self, traced: Traced, error: BaseException) -> BySize:
        """A program for each size, where one for all cannot be: ``choices`` says why."""
        self.stats.choices.append(f"a program for each size, because {reason_of(error)}")
        return BySize(self.add, self.leave, traced, reason_of(error))

    def add(self, traced: Traced, inputs: Sequence[object]) -> Callable[..., Any]:
        """Compile a graph; ``inputs`` are its arguments in the first call. One that eager PyTorch runs faster stays."""
        estimate = self.estimate(traced, inputs)
        if estimate is None:
            return self.compile_graph(traced, inputs)
        if estimate.gain < 0:
            self.stats.choices.append(str(estimate))
            logger.info("a graph of %d operators is left in %s", len(traced.graph.graph.nodes), estimate)
            eager = self.eager(traced.graph.forward, is_chosen=True)
            return while_small(estimate, eager, partial(self._larger, traced)) if is_symbolic(traced) else eager
        graph = self.compile_graph(traced, inputs)
        if isinstance(graph, CompiledGraph):
            graph.estimate = estimate
        return graph

    def _larger(self, traced: Traced, arguments: Sequence[object]) -> Callable[..., Any]:
        """A program for a graph whose first calls were small."""
        with own_mode():
            try:
                return self.compile_graph(traced, arguments)
            except Exception as error:
                return self.by_size(traced, error)

    def estimate(self, traced: Traced, inputs: Sequence[object]) -> CallEstimate | None:
        """What eager PyTorch takes, where it is for us to choose."""
        options = self.options
        is_ours = options.tune is None and options.verify is None and self.leaves_small
        if not is_ours or not isinstance(recipe_for("cpu", options.recipe), Choice):
            return None
        return estimate(traced, inputs)

    def compile_graph(self, traced: Traced, inputs: Sequence[object]) -> Callable[..., Any]:
        """A graph as a program; in eager PyTorch only where that is faster as measured."""
        recipe = self.options.recipe if self.options.tune is None else self._tune(traced, inputs)
        if recipe is None:
            return self.eager(traced.graph.forward, is_chosen=True)
        graph = self.graph(traced, recipe)
        self.keep(graph, inputs)
        logger.info("compiled a graph of %d operators", len(traced.graph.graph.nodes))
        return graph

    def keep(self, graph: CompiledPiece, arguments: Sequence[object]) -> None:
        """Count a program, whose first call has these arguments, among those of the module."""
        self.graphs.append(graph)
        shapes = {f"input:{k}": tuple(t.shape) for k, t in enumerate(graph.inputs(arguments))}
        self.stats.record(graph.pair, shapes)

    def graph(self, traced: Traced, recipe: str | Recipe | None = None) -> CompiledGraph:
        """A graph as a program, by the options' recipe unless one is given. Raises why there is none."""
        return CompiledGraph(self, traced, self.pair(traced, recipe))

    def compile(self, fingerprint: str, load: Load, *, recipe: Recipe) -> CompiledPair:
        """The programs of what ``load`` gives; ``fingerprint`` identifies it."""
        return pipeline.compile_graph(fingerprint, load, recipe=recipe, verify=self.options.verify)

    def pair(
        self, traced: Traced, recipe: str | Recipe | None = None, reduction: Reduction | None = None
    ) -> CompiledPair:
        """The programs of a graph. ``reduction``: which gradients, by arguments, are averages over ranks."""
        fingerprint = identity(traced) if reduction is None else f"{identity(traced)} {reduction}"
        chosen = recipe_for(traced.device, recipe or self.options.recipe)
        return self.compile(fingerprint, partial(load_graph, traced, reduction), recipe=chosen)

    def _tune(self, traced: Traced, inputs: Sequence[object]) -> Recipe | None:
        """The fastest recipe as measured; None for eager PyTorch."""
        recipe, chosen = (recipe_for(device, self.options.recipe) for device in ("cpu", traced.device))
        trains, eager = repeated_call.trains(traced), None
        repeat = partial(repeated_call.repeatable, arguments=inputs, requires_grad=traced.requires_grad, trains=trains)
        if isinstance(recipe, Choice) and not effects.lasting(traced.graph.graph):
            eager = Contender(repeat(traced.graph.forward))

        def make(recipe: Recipe) -> Contender:
            graph = self.graph(traced, recipe)
            return Contender(repeat(graph.run), graph.pair.code)

        return self.tune(identity(traced), chosen, make, inputs, eager=eager, trains=trains)

    def tune(
        self,
        fingerprint: str,
        recipe: Recipe,
        make: Make,
        inputs: Sequence[object],
        *,
        eager: Contender | None = None,
        trains: bool | None = None,
    ) -> Recipe | None:
        """The fastest recipe for what ``fingerprint`` identifies, as measured (``programs/tuning``); ``recipe`` itself
        where the call is an error, of which its caller hears from the program."""
        record = TuningRecord(fingerprint, recipe, device_of(inputs))
        try:
            with own_random_numbers(inputs):
                result = Search(record, recipe, make, self.options.tune or 0.0, eager=eager, trains=trains).find()
        except RunError:
            return recipe
        self.stats.record_tuning(result)
        return result.recipe

    def leave(
        self, traced: Traced, error: BaseException, arguments: Sequence[object], is_repeated: bool = False
    ) -> Sequence[Any]:
        """Run a call in eager PyTorch after a program failed; ``is_repeated``: with it a call of the model begins."""
        before = breaks.versions(arguments)
        try:
            compile_forward(traced.graph)  # which would print the error as well
            result = traced.graph.forward(*arguments)
        except Exception as wrong:  # the call itself is, and the error says how
            # what it has changed until then, or Python before it, must not change a second time
            setattr(wrong, WRONG_CALL, is_repeated and breaks.versions(arguments) == before)
            raise wrong.with_traceback(None) from None
        self.stats.count_eager()
        self._refused(breaks.of_error(error, breaks.part_of(traced.graph), reason_of(error)), error)
        return result


def _concrete(value: object) -> object:
    """What a size is in the first call, where Dynamo gives the symbol."""
    return value.node.hint if isinstance(value, torch.SymInt) else value


class CompiledGraph(CompiledPiece):
    """A program that leaves sizes that it is not for to others, and calls in which it fails to eager PyTorch; it counts
    its calls, and compiles gradients that its backward program does not have when they are asked for."""

    def __init__(self, backend: Backend, traced: Traced, pair: CompiledPair, is_average: bool = False) -> None:
        """``is_average``: its gradients are averages over ranks, those of further programs would be of this rank."""
        super().__init__(traced, pair, None if is_average else self)
        self._backend, self._is_repeated = backend, backend.raises_again
        self._by_size: BySize | None = None  # for sizes that the program is not for
        self._higher_graphs: dict[tuple[tuple[int, ...], tuple[int, ...]], CompiledGraph | BySize] = {}
        self._higher_calls: dict[tuple[tuple[bool, ...], tuple[bool, ...]], HigherCall] = {}
        self._present_graphs: dict[frozenset[int], CompiledGraph] = {}
        self._segments: dict[tuple[int, ...], CompiledGraph] = {}
        self.estimate: CallEstimate | None = None  # None: a program is faster, or nobody knows
        self.is_estimated = True  # False: the first call tells its sizes
        self._may_grow = is_symbolic(traced)

    def __call__(self, *arguments: object) -> Sequence[Any]:
        if self._overlaps is not None and self._overlaps(arguments):
            return self._backend.leave(self.traced, Unsupported(OVERLAP), arguments, self._is_repeated)
        try:
            result = self.run(*arguments)
        except SizesError as error:
            self._by_size = self._by_size or self._backend.by_size(self.traced, error)
            return self._by_size(*arguments)
        except RunError as error:
            return self._backend.leave(self.traced, error, arguments, self._is_repeated)
        self._backend.ran += 1
        if self._backend.is_weighed:
            self._backend.gained += self._gain(arguments)
        for effect in self._effects:
            effect()
        return result

    def _gain(self, arguments: Sequence[object]) -> float:
        """Microseconds that a call saves at most."""
        if not self.is_estimated:
            with own_mode():
                self.estimate, self.is_estimated = self._backend.estimate(self.traced, arguments), True
        own_estimate = self.estimate
        if own_estimate is None or (self._may_grow and not own_estimate.holds(arguments)):
            return math.inf
        return own_estimate.gain

    def higher_gradients(
        self, tensors: Sequence[object], grads: Sequence[object], needs_grad: Sequence[bool], changed: frozenset[int]
    ) -> list[Any]:
        """Gradients by the program's inputs, as results of a compiled graph that is differentiable in its turn."""
        key = tuple(needs_grad), tuple([g is not None for g in grads])
        graph, present, results = self._higher_calls.get(key) or self._prepare_higher(*key)
        if changed:
            graph.traced.check_unchanged([self.binding.inputs[k][1] for k in changed])
        gradients = graph(*self.arguments(tensors), *[grads[k] for k in present])
        return [None if k is None else gradients[k] for k in results]

    def _prepare_higher(self, needs_grad: tuple[bool, ...], present: tuple[bool, ...]) -> HigherCall:
        """``needs_grad``: of each input; ``present``: of each output, whether its gradient is there."""
        inputs, outputs = self.binding.inputs, self.binding.outputs
        by = [k for (kind, k), w in zip(inputs, needs_grad) if w and kind == "tensor" and self.traced.requires_grad[k]]
        differentiable = [k for k, o in enumerate(outputs) if o.differentiable]
        key = tuple(by), tuple(at for at, k in enumerate(differentiable) if present[k])
        graph = self._higher_graphs.get(key) or self._compile_higher(*key)
        results = [by.index(k) if kind == "tensor" and k in by else None for kind, k in inputs]
        call = self._higher_calls[needs_grad, present] = graph, [k for k in differentiable if present[k]], results
        return call

    def _compile_higher(self, by: tuple[int, ...], of: tuple[int, ...]) -> CompiledGraph | BySize:
        """The gradients of the differentiable outputs ``of`` by the arguments ``by``."""
        from daceopt.capture.torch.higher import gradient_of

        try:
            gradient = gradient_of(self.traced, by, of)
        except ValueError as error:  # PyTorch's formula, where it has one, does not fit
            raise Unsupported(f"a gradient of a gradient: {reason_of(error)}") from error
        graph: CompiledGraph | BySize
        try:
            graph = self._backend.graph(gradient)
            graph.estimate = self.estimate and FOLLOWS
        except Unsupported as error:  # sizes that its derivative settles
            graph = self._backend.by_size(gradient, error)
        self._higher_graphs[by, of] = graph
        return graph

    def present_gradients(
        self,
        tensors: Sequence[object],
        grads: Sequence[object],
        needs_grad: Sequence[bool],
        changed: frozenset[int],
        seed: int | None,
    ) -> list[Any]:
        """Gradients by the program's inputs, of a program whose outputs without a gradient have none either."""
        present = frozenset(k for k, g in enumerate(grads) if g is not None)
        graph = self._present_graphs.get(present) or self._compile_present(present)
        graph.traced.check_unchanged([self.binding.inputs[k][1] for k in changed])
        return graph.program.gradients_again(tensors, grads, seed, needs_grad)

    def _compile_present(self, present: frozenset[int]) -> CompiledGraph:
        traced, binding = self.traced, self.binding
        written = dict(binding.mutations)
        results = tuple(f and r.index in present for f, r in zip(traced.results, binding.results))
        changed = tuple(f and written.get(k) in present for k, f in enumerate(traced.changed))
        with own_mode(), torch.enable_grad():
            graph = self._backend.graph(replace(traced, results=results, changed=changed))
        return self._present_graphs.setdefault(present, graph)

    def stage_gradients(
        self,
        stage: ResultStage,
        tensors: Sequence[object],
        held: Sequence[object],
        grads: Sequence[object],
        needs_grad: Sequence[bool],
        changed: frozenset[int],
        changed_held: frozenset[int],
        seed: int | None,
    ) -> list[Any]:
        """Gradients by the program's inputs and by the results that the stage holds: of a program from these to the
        outputs that have a gradient."""
        outputs = tuple(k for k, g in zip(stage.outputs, grads) if g is not None)
        graph = self._segments.get(outputs) or self._compile_segment(stage, outputs)
        arguments, count = [k for _, k in self.binding.inputs], len(self.traced.inputs)
        moved = [arguments[k] for k in changed] + [count + k for k in changed_held]
        is_wanted = dict(zip(arguments, needs_grad)) | dict.fromkeys(range(count, count + len(held)), True)
        present = [g for g in grads if g is not None]
        gradients = graph.gradients([*self.arguments(tensors), *held], present, is_wanted, moved, seed)
        return [gradients.get(k) for k in (*arguments, *range(count, count + len(held)))]

    def gradients(
        self,
        arguments: Sequence[object],
        grads: Sequence[object],
        needs_grad: Mapping[int, bool],
        changed: Sequence[int],
        seed: int | None,
    ) -> dict[int, Any]:
        """Gradients by arguments of a call that has been made elsewhere, of results each of which has one."""
        program, inputs = self.program, self.binding.inputs
        tensors, by = self.inputs(arguments), [needs_grad.get(k, False) for _, k in inputs]
        outputs: list[Any] = [None] * len(self.binding.outputs)
        for result, grad in zip(self.binding.results, grads, strict=True):
            outputs[result.index] = grad
        if torch.is_grad_enabled():
            results = self.higher_gradients(
                tensors, outputs, by, frozenset(k for k, (_, a) in enumerate(inputs) if a in changed)
            )
        else:
            self.traced.check_unchanged(changed)
            results = program.gradients_again(tensors, outputs, seed, by)
        absent_gradients.settle(program.boundary.connected, tensors, outputs, by, results)
        return {k: g for (_, k), g in zip(inputs, results) if g is not None}

    def _compile_segment(self, stage: ResultStage, outputs: tuple[int, ...]) -> CompiledGraph:
        from daceopt.capture.torch.stages import segment

        with own_mode(), torch.enable_grad():
            graph = self._backend.graph(segment(self.traced, stage, outputs))
        return self._segments.setdefault(outputs, graph)


def load_graph(traced: Traced, reduction: Reduction | None, target: str) -> Imported:
    """A graph, with the gradients by its arguments that are averages over ranks."""
    from daceopt.capture.torch.importing import load

    imported = load(traced, target)
    if reduction is not None and imported.gradients is not None:
        inputs = Binding.from_json(imported.notes["binding"]).inputs
        position = {argument: k for k, (kind, argument) in enumerate(inputs) if kind == "tensor"}
        imported.gradients = replace(imported.gradients, reduction=reduction.move(position))
    return imported


def _shapes(graph: CompiledPiece) -> dict[str, tuple[int, ...]]:
    """Of the inputs of a program by role, as they may be in a call."""
    values = [(kind, graph.traced.inputs[k]) for kind, k in graph.binding.inputs]
    shapes = [tuple(map(guards.example, x.shape)) if kind == "tensor" else (0, guards.example(x)) for kind, x in values]
    return {f"input:{k}": shape for k, shape in enumerate(shapes)}
