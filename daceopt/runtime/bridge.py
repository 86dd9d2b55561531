"""Compiled programs as PyTorch sees them: an autograd function for a training pair, a plain call for inference.

A training call saves what its backward reads through ``save_for_backward``, so PyTorch's own rules hold for it:
version counters, freed graphs, checkpointing and saved-tensor hooks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.graph import increment_version

from daceopt.errors import BuildError, Unsupported
from daceopt.runtime import absent_gradients, batched, block_pool, engine, result_hooks, saved_arrays, stages
from daceopt.runtime.binding import Output, ResultStage
from daceopt.runtime.boundary import TensorBoundary
from daceopt.runtime.bulk_copies import copies
from daceopt.runtime.device_entry import entry_of
from daceopt.runtime.seeds import draw_seed
from daceopt.runtime.unversioned import HIDDEN, NewValues
from daceopt.torch_internals import functorch
from daceopt.torch_internals.autograd_engine import keeps_graph
from daceopt.torch_internals.frame_evaluation import never_compile
from daceopt.torch_internals.functorch import unwrap_dead_wrappers


class Pair(Protocol):
    """What the bridge needs of a compiled pair: see ``compiled.CompiledPair``."""

    forward: Any
    backward: Any


_SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)
_INFERENCE = (
    "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a normal "
    "tensor before doing inplace update."
)
_INFERENCE_SAVED = (
    "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in "
    "computation tracked by autograd. To work around this, you can make a clone to get a normal tensor and use it in "
    "autograd, or use `torch.no_grad()` instead of `torch.inference_mode()`."
)


class TorchProgram:
    """A compiled pair bound to PyTorch: call it with the program's inputs, get its outputs, which are new tensors."""

    def __init__(self, pair: Pair, input_count: int, boundary: TensorBoundary | None = None) -> None:
        self.pair, self.boundary = pair, boundary or TensorBoundary()
        self.forward = entry_of(pair.forward)
        self.backward = None if pair.backward is None else entry_of(pair.backward)
        self.input_count = input_count
        self._reads = [k for _, k in self.forward.inputs]
        self._reads_all = self._reads == list(range(input_count))
        self._order = _complete([k for _, k in self.forward.outputs])
        self._stand = {k: self.forward.in_place[at] for at, k in enumerate(self._order) if at in self.forward.in_place}
        self.consumes = self.backward is not None and self.backward.executable.manifest.consumes
        self._draws = self.forward.uses_seed or (self.backward is not None and self.backward.uses_seed)
        roles = [] if self.backward is None else self.backward.inputs
        self.kept_inputs = [k for kind, k in roles if kind == "input"]
        self.kept_outputs = [k for kind, k in roles if kind == "output"]
        self.grads = [k for kind, k in roles if kind == "grad"]
        # Where each input of the backward program is in the list of kept inputs, kept outputs and gradients.
        places = [("input", k) for k in self.kept_inputs] + [("output", k) for k in self.kept_outputs]
        places += [("grad", k) for k in self.grads]
        self._gather = [places.index(role) for role in roles]
        self._bind(self.boundary)

    def _bind(self, boundary: TensorBoundary) -> None:
        outputs = boundary.outputs or ()
        differentiable = (
            {k for k, o in enumerate(outputs) if o.differentiable} if boundary.outputs is not None else {*self.grads}
        )
        self.differentiable = sorted(differentiable)
        self.trains = bool(differentiable) and (self.backward is not None or boundary.outputs is not None)
        self.constants = [k for k in range(len(self._order)) if k not in differentiable]
        stand = {k: i for k, i in self._stand.items() if (i, k) in boundary.mutations and k not in differentiable}
        if stand.keys() != self._stand.keys():
            raise BuildError(f"a built program writes over its inputs {self._stand}; the call changes {stand}")
        # (input, output) pairs: new values that are copied into their inputs, and those that are written there
        self.mutations = [(i, k) for i, k in boundary.mutations if k not in differentiable and stand.get(k) != i]
        self.overwritten = [(i, k) for k, i in stand.items()]
        self.new_values = NewValues(self.mutations, boundary)
        # inputs whose values before the call a backward reads
        changed = {i for i, _ in boundary.mutations}
        self.volatile = changed if boundary.further is not None else changed.intersection(self.kept_inputs)
        self.forward.forms = {at: outputs[k] for at, k in enumerate(self._order)} if outputs else {}
        # the permutation of each output whose axes are not in memory as they are counted
        self.orders = {k: o.order for k, o in enumerate(outputs) if o.is_turned}
        # where each output of the graph is among the program's; None: as they are
        positions = list(_inverse(self._order))
        self._positions = None if positions == sorted(positions) else positions
        gradients = [] if self.backward is None else [k for _, k in self.backward.outputs]
        if self.backward is not None:
            complexes = [at for at, k in enumerate(gradients) if k in boundary.complex_inputs]
            self.backward.forms = dict.fromkeys(complexes, Output((), False, complex=True))
        # whether some input gets None or zero whatever the gradients are
        self.has_absent = any(not of or k not in gradients for k, of in (boundary.connected or {}).items())

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Outputs of the graph, inputs already updated; differentiable when the pair has a backward program."""
        try:
            return self._call(tensors)
        except RuntimeError:  # also where a tensor has no memory, as what a transform of torch.func has left behind
            alive = unwrap_dead_wrappers(tuple(tensors))
            if all(a is t for a, t in zip(alive, tensors)):
                raise
        return self._call(alive)

    def _call(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if self.trains:
            if torch.is_grad_enabled():
                return _apply(self, *tensors)
            if not torch.is_inference_mode_enabled():
                with torch.enable_grad():  # as a region of the model has it, whatever is around the call
                    return _apply(self, *tensors)
        if not torch.is_grad_enabled():
            return self.run(tensors).outputs
        with torch.no_grad():
            return self.run(tensors).outputs

    def run(self, tensors: Sequence[torch.Tensor], copied: Collection[int] = (), seed: int | None = None) -> Ran:
        """Run the forward program and update changed inputs; the caller has switched gradients off.

        The inputs ``copied`` are returned as they were before. ``seed``: that of an earlier call (None: a new one).
        """
        dense = [t if t.is_contiguous() and not t.is_neg() else _dense(t) for t in tensors]
        for k in self.boundary.complex_inputs:
            dense[k] = dense[k].resolve_conj()
        entry = self.forward.place(dense)
        addresses = [t.data_ptr() for t in dense]  # of all, before anything is done
        before = self._before_writing(tensors, dense, copied) if self.overwritten else {}
        symbols = tuple([dense[k].shape[axis] for k, axis in entry.symbols]) if entry.symbols else ()
        memory = entry.memory(symbols)
        outputs = memory.allocate()
        saved = None if memory.saved is None else memory.saved()
        seed = draw_seed() if self._draws and seed is None else seed
        read = addresses if self._reads_all else [addresses[k] for k in self._reads]
        entry.invoke(read, outputs, saved, seed, symbols, memory.arena)
        if self._positions is not None:
            outputs = [outputs[k] for k in self._positions]
        for i, k in self.overwritten:
            outputs[k] = dense[i]
            if dense[i] is not tensors[i]:
                tensors[i].copy_(dense[i])
        if copied:
            positions = [k for k in copied if k not in before]
            for k, copy in (before | dict(zip(positions, copies([dense[k] for k in positions])))).items():
                dense[k] = copy
        if self.mutations:
            self.new_values.assign(tensors, outputs)
        return Ran(dense, outputs, saved, seed, symbols)

    def _before_writing(
        self, tensors: Sequence[torch.Tensor], dense: Sequence[torch.Tensor], copied: Collection[int]
    ) -> dict[int, torch.Tensor]:
        """Let autograd know what is about to be written over; copies of those inputs that are asked for."""
        written = [tensors[i] for i, _ in self.overwritten]
        if not torch.is_inference_mode_enabled() and any(t.is_inference() for t in written):
            raise RuntimeError(_INFERENCE)
        increment_version(written)
        inputs = {i for i, _ in self.overwritten}
        positions = [k for k in copied if k in inputs]
        return dict(zip(positions, copies([dense[k] for k in positions])))

    def backward_reads(self, ran: Ran) -> list[torch.Tensor]:
        """What the backward of a call reads, but its saved block."""
        return [ran.inputs[k] for k in self.kept_inputs] + [ran.outputs[k] for k in self.kept_outputs]

    def arrays_in(self, block: torch.Tensor, symbols: tuple[int, ...]) -> list[torch.Tensor]:
        """What a call has saved in its block."""
        return saved_arrays.arrays(block, self.forward.executable.manifest, symbols)

    def restore(
        self,
        tensors: Sequence[torch.Tensor],
        kinds: Sequence[saved_arrays.Kind],
        symbols: tuple[int, ...],
        inputs: Sequence[torch.Tensor],
    ) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """What hooks gave back of a call: what its backward reads, and its saved block, which that may write."""
        arrays, count = saved_arrays.restore(tensors, kinds), len(self.kept_inputs) + len(self.kept_outputs)
        if len(arrays) == count:
            return arrays, None
        allocate = self.forward.place(list(inputs)).memory(symbols).saved
        assert allocate is not None
        manifest = self.forward.executable.manifest
        return arrays[:count], saved_arrays.block_of(arrays[count:], manifest, symbols, allocate, self.consumes)

    def gradients(
        self,
        arrays: list[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        ran: Ran,
        needs_grad: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """Run the backward program on what was kept of a call, and gradients; one result or None per input."""
        assert self.backward is not None
        if self.orders:
            first = len(self.kept_inputs)
            for at, k in enumerate(self.kept_outputs, first):
                arrays[at] = self.in_memory_order(k, arrays[at])
        for k in self.grads:
            grad = grads[k]
            arrays.append(self._zero(k, ran) if grad is None else self.in_memory_order(k, grad))
        dense = [t if t.is_contiguous() and not (t.is_neg() or t.is_conj()) else _dense(t) for t in arrays]
        entry = self.backward.place(dense)
        memory = entry.memory(ran.symbols)
        outputs = memory.allocate()
        addresses = [t.data_ptr() for t in dense]
        entry.invoke([addresses[k] for k in self._gather], outputs, ran.saved, ran.seed, ran.symbols, memory.arena)
        result: list[torch.Tensor | None] = [None] * self.input_count
        for (_, k), gradient in zip(entry.outputs, outputs):
            if needs_grad[k]:
                result[k] = gradient
        return result

    def gradients_again(
        self,
        tensors: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor | None],
        seed: int | None,
        needs_grad: Sequence[bool],
    ) -> list[torch.Tensor | None]:
        """The gradients of an earlier call, which runs again and changes nothing; the caller has switched gradients
        off."""
        if self.backward is None:  # what has a gradient has a derivative of zero
            return [None] * self.input_count
        written = {i for i, _ in (*self.mutations, *self.overwritten)}
        ran = self.run([t.clone() if k in written else t for k, t in enumerate(tensors)], self.volatile, seed)
        return self.gradients(self.backward_reads(ran), grads, ran, needs_grad)

    def apart(
        self,
        call: Any,
        stage: ResultStage,
        held: Sequence[torch.Tensor],
        changed: frozenset[int],
        grads: Sequence[torch.Tensor | None],
        is_needed: bool,
    ) -> list[torch.Tensor | None]:
        """What ``stage_gradients`` says, of an earlier call; ``is_needed``: gradients by its inputs are wanted, too."""
        further = self.boundary.further
        if further is None:
            raise Unsupported(
                "a gradient by a result of a compiled module from which another result is computed. Compute the other "
                "result outside of the module"
            )
        needs_grad = [is_needed and w for w in call.needs_input_grad[1:]]
        before = _changed_arguments(call)
        return further.stage_gradients(stage, call.operands, held, grads, needs_grad, before, changed, call.seed)

    def in_memory_order(self, output: int, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like that output, its axes as they are in memory."""
        order = self.orders.get(output)
        return tensor if order is None else tensor.permute(order)

    def _zero(self, output: int, ran: Ran) -> torch.Tensor:
        """The gradient of an output that nothing depends on, as it is in memory, beside the call's inputs; to read."""
        memory = self.forward.place(list(ran.inputs)).memory(ran.symbols)
        return self.in_memory_order(output, memory.zero(self._order.index(output)))


class Ran(NamedTuple):
    """What one forward call leaves for its backward."""

    inputs: Sequence[torch.Tensor]
    outputs: list[torch.Tensor]
    saved: torch.Tensor | None
    seed: int | None
    symbols: tuple[int, ...]


class _Compiled(torch.autograd.Function):
    """The node that a training call leaves in PyTorch's graph."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, program: TorchProgram, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.versions = _versions(tensors, program.kept_inputs)  # before the call changes any
        for k in program.boundary.unversioned:
            ctx.versions[k] = HIDDEN
        ran = program.run(tensors, program.volatile)
        inputs, outputs, saved, seed, symbols = ran
        ctx.operands = tensors if not program.volatile else _before(tensors, inputs, program.volatile, ctx.versions)
        arrays = program.backward_reads(ran)
        is_hooked = saved_arrays.are_hooked()
        if saved is not None:
            arrays += program.arrays_in(saved, symbols) if is_hooked else [saved]
        ctx.kinds = saved_arrays.kinds(arrays) if is_hooked else None
        for _, k in program.overwritten:
            outputs[k] = torch.empty(0)  # an argument is no result of its own
        ctx.save_for_backward(*arrays)
        ctx.program, ctx.seed, ctx.symbols, ctx.has_block = program, seed, symbols, saved is not None
        ctx.is_consumed, ctx.direct, ctx.count = False, {}, program.new_values.count
        ctx.set_materialize_grads(False)
        if program.constants:
            ctx.mark_non_differentiable(*[outputs[k] for k in program.constants])
        return tuple(outputs)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *grads: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        return (None, *stages.with_direct(ctx, _backward(ctx, grads)))


result_hooks.install(_Compiled)
_Compiled._backward_cls.apply = _Compiled.backward  # PyTorch's own looks for another derivative first


# ``_Compiled.apply`` without its looks at every argument; it says what is wrong under a transform of torch.func
_apply_directly = super(torch.autograd.Function, _Compiled).apply


def _apply(program: TorchProgram, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if functorch.are_transforms_active():
        return _Compiled.apply(program, *tensors)
    return _apply_directly(program, *tensors)


def _before(
    tensors: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], volatile: Iterable[int], versions: list[int]
) -> list[torch.Tensor]:
    """The arguments with copies in place of those that the call has changed; no copy has the history of one that
    requires a gradient."""
    operands = list(tensors)
    for k in volatile:
        if not tensors[k].requires_grad:
            operands[k], versions[k] = inputs[k], 0
    return operands


def _versions(tensors: Sequence[torch.Tensor], saved: Iterable[int] = ()) -> list[int]:
    """Raises PyTorch's error where autograd would refuse to save one of ``saved``."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # tensors of inference mode have none
        if any(tensors[k].is_inference() and tensors[k].is_contiguous() for k in saved):
            raise RuntimeError(_INFERENCE_SAVED) from None
        return [0 if t.is_inference() else t._version for t in tensors]


def _backward(
    ctx: torch.autograd.function.FunctionCtx, grads: Sequence[torch.Tensor | None], one_of_many: bool = False
) -> list[torch.Tensor | None]:
    if batched.is_batched(grads):
        return batched.each(lambda one: _backward(ctx, one, True), grads)
    program: TorchProgram = ctx.program
    is_recorded = torch.is_grad_enabled()
    # a program computes all gradients at once; a graph that is differentiated once more those alone that are wanted
    needs_grad = engine.gradients_wanted(ctx, ctx.operands) if is_recorded else ctx.needs_input_grad[1:]
    absent = [k for k in program.differentiable if grads[k] is None]
    if is_recorded:
        gradients = _differentiable_gradients(ctx, grads, needs_grad)
    elif program.backward is None or len(absent) == len(program.differentiable):
        gradients = [None] * program.input_count
    else:
        gradients = _gradients(ctx, program, grads, needs_grad, one_of_many or keeps_graph())
        further = program.boundary.further
        later = program.boundary.later
        if absent and further is not None and absent_gradients.has_spread(program.grads, later, grads, gradients):
            gradients = further.present_gradients(ctx.operands, grads, needs_grad, _changed_arguments(ctx), ctx.seed)
    if absent or program.has_absent:
        absent_gradients.settle(program.boundary.connected, ctx.operands, grads, needs_grad, gradients)
    return gradients


never_compile(_Compiled.backward.__code__)


def _gradients(
    ctx: torch.autograd.function.FunctionCtx,
    program: TorchProgram,
    grads: Sequence[torch.Tensor | None],
    needs_grad: Sequence[bool],
    keeps_graph: bool,
) -> list[torch.Tensor | None]:
    """``keeps_graph``: another backward may follow, so the saved block must stay as it is."""
    if ctx.is_consumed:  # by a backward that failed, else PyTorch would have freed what is saved
        raise RuntimeError(_SECOND_TIME)
    tensors = list(ctx.saved_tensors)
    program.new_values.check(ctx.operands, zip(program.kept_outputs, tensors[len(program.kept_inputs) :]), ctx.count)
    if ctx.kinds is not None:
        tensors, saved = program.restore(tensors, ctx.kinds, ctx.symbols, ctx.operands)
        return program.gradients(tensors, grads, Ran(ctx.operands, [], saved, ctx.seed, ctx.symbols), needs_grad)
    saved = tensors.pop() if ctx.has_block else None
    if saved is not None and program.consumes:
        saved = _copy(saved) if keeps_graph else saved
        ctx.is_consumed = not keeps_graph
    return program.gradients(tensors, grads, Ran(ctx.operands, [], saved, ctx.seed, ctx.symbols), needs_grad)


def _differentiable_gradients(
    ctx: torch.autograd.function.FunctionCtx, grads: Sequence[torch.Tensor | None], needs_grad: Sequence[bool]
) -> list[torch.Tensor | None]:
    """The gradients where PyTorch records what computes them (``create_graph=True``)."""
    further = ctx.program.boundary.further
    if further is None:
        raise Unsupported("a gradient of a gradient: this program has a first derivative only")
    return further.higher_gradients(ctx.operands, grads, needs_grad, _changed_arguments(ctx))


def _changed_arguments(ctx: torch.autograd.function.FunctionCtx) -> frozenset[int]:
    versions = enumerate(zip(ctx.versions, _versions(ctx.operands)))
    return frozenset(k for k, (then, now) in versions if then != now)


def _complete(order: list[int]) -> list[int]:
    if sorted(order) != list(range(len(order))):
        raise BuildError(f"a built program writes the outputs {order}; expected each of {list(range(len(order)))} once")
    return order


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _copy(block: torch.Tensor) -> torch.Tensor:
    """Another block of equal contents, from where the program's blocks come from."""
    if block.device.type != "cpu":
        return block.clone()
    return block_pool.allocate(tuple(block.shape), block.dtype).copy_(block)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_neg().resolve_conj().contiguous()
