"""From one call of a module to a program that fits it: tracing, compiling, and generalising over sizes that change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from daceopt.errors import CaptureError, Unsupported
from daceopt.guards import Snapshot
from daceopt.runtime.bridge import Program

if TYPE_CHECKING:
    from daceopt.capture.trace import Trace
    from daceopt.recipe import Recipe

logger = logging.getLogger("daceopt.dispatch")

SHAPE_LIMIT = 8
"""Programs of one call signature, beyond which further shapes run eagerly."""


@dataclass(frozen=True)
class Options:
    """The arguments of ``optimized_module``."""

    recipe: str | Recipe = "auto"
    backward: bool | None = None
    dynamic: Any = None
    fallback: str = "warn"
    verify: str | None = None


class Specialisation:
    """A program with its bindings: from a module's tensors and a call's leaves to the result of ``forward``."""

    def __init__(self, trace: Trace, program: Program, snapshot: Snapshot) -> None:
        self.trace, self.program = trace, program
        # Where each input comes from: the module's tensors come first, the call's leaves after them.
        self._sources = [_source(spec, snapshot) for spec in trace.inputs]
        self._assemble = _assembler(trace)

    def _tensors(self, owned: Sequence[torch.Tensor], leaves: Sequence[Any]) -> list[torch.Tensor]:
        return [(leaves[k] if kind == "user" else owned[k]) if v is None else v for kind, k, v in self._sources]

    def shapes(self, owned: Sequence[torch.Tensor], leaves: Sequence[Any]) -> dict[str, tuple[int, ...]]:
        """Shape of each input of the program in this call, by role."""
        return {f"input:{k}": tuple(t.shape) for k, t in enumerate(self._tensors(owned, leaves))}

    def __call__(self, owned: Sequence[torch.Tensor], leaves: Sequence[Any]) -> Any:
        """Run on the module's present tensors (``Snapshot.read``) and the flat arguments."""
        tensors = self._tensors(owned, leaves)
        return self._assemble(self.program(tensors), tensors)

    def accepts(self, leaves: Sequence[Any]) -> bool:
        """Whether the sizes of these arguments lie within what the trace is valid for; ranks and dtypes are known to
        fit.
        """
        values: dict[str, int] = {}
        for spec in self.trace.inputs:
            if spec.kind != "user":
                continue
            for expected, found in zip(spec.shape, leaves[spec.target].shape):  # type: ignore[index]
                if isinstance(expected, int):
                    if expected != found:
                        return False
                elif expected not in self.trace.symbols or values.setdefault(expected, found) != found:
                    return False
        return self.trace.holds(values)


def _source(spec: Any, snapshot: Snapshot) -> tuple[str, int, torch.Tensor | None]:
    if spec.kind == "user":
        return "user", spec.target, None
    if spec.kind == "constant":
        return "constant", -1, spec.value
    return "owned", snapshot.position(spec.target), None


def _assembler(trace: Trace) -> Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Any]:
    """How the flat result is filled, and its structure restored."""
    computed = [k for k, s in enumerate(trace.outputs) if s.kind in ("buffer_mutation", "user")]
    places: list[tuple[int, str, Any]] = []
    for spec in trace.outputs:
        if spec.kind == "buffer_mutation":
            continue
        origin: Any = {"input": spec.source, "constant": spec.value}.get(spec.kind)
        if spec.kind in ("user", "alias"):
            position = trace.outputs.index(spec) if spec.kind == "user" else spec.source
            places.append((int(spec.target), "output", computed.index(position)))  # type: ignore[arg-type]
        else:
            places.append((int(spec.target), spec.kind, origin))
    places.sort(key=lambda place: place[0])
    out_tree = trace.out_tree
    single = out_tree.is_leaf() and places[0][1] == "output"
    if single:
        position = places[0][2]
        return lambda outputs, tensors: outputs[position]

    def assemble(outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> Any:
        flat = [outputs[o] if kind == "output" else tensors[o] if kind == "input" else o for _, kind, o in places]
        return pytree.tree_unflatten(flat, out_tree)

    return assemble


@dataclass
class Family:
    """All programs of one call signature: calls that differ in sizes only."""

    programs: list[Specialisation] = field(default_factory=list)
    shapes: list[dict[int, tuple[int, ...]]] = field(default_factory=list)  # flat index -> shape, one per program
    axes: dict[int, set[int]] = field(default_factory=dict)  # those seen to change
    fixed: bool = False  # the model cannot be traced with those axes dynamic
    failure: str | None = None

    def find(self, leaves: Sequence[Any]) -> Specialisation | None:
        """A program that takes these arguments."""
        return next((p for p in self.programs if p.accepts(leaves)), None)

    def add(self, module: nn.Module, call: Request, options: Options) -> Specialisation:
        """Compile a program for this call, general in the sizes that were seen to change. Raises what capture and
        build raise.
        """
        if len(self.programs) >= SHAPE_LIMIT:
            raise Unsupported(
                f"more than {SHAPE_LIMIT} programs for different sizes of the arguments; mark them with dynamic="
            )
        shapes = {k: tuple(x.shape) for k, x in enumerate(call.leaves) if isinstance(x, torch.Tensor)}
        program = self._general(module, call, options, shapes) or compile_call(module, call, options, options.dynamic)
        self.programs.append(program)
        self.shapes.append(shapes)
        return program

    def _general(
        self, module: nn.Module, call: Request, options: Options, shapes: dict[int, tuple[int, ...]]
    ) -> Specialisation | None:
        changed = _changed_axes(self.shapes, shapes)
        if options.dynamic is not None or self.fixed or not changed:
            return None
        axes = {index: self.axes.get(index, set()) | changed.get(index, set()) for index in {*self.axes, *changed}}
        try:
            free = {index: {a for a in found if shapes[index][a] > 1} for index, found in axes.items()}
            program = compile_call(module, call, options, free)
        except (CaptureError, Unsupported) as error:
            logger.info("%s: one program per size, because %s", type(module).__name__, error)
            program = compile_call(module, call, options, None)
            # Known only now, for the call itself may have been wrong; an axis of 1 may have stood for a broadcast.
            self.fixed = all(
                old[index][axis] > 1 for old in self.shapes for index in changed for axis in changed[index]
            )
            return program
        self.axes = axes
        return program


def _changed_axes(known: list[dict[int, tuple[int, ...]]], shapes: dict[int, tuple[int, ...]]) -> dict[int, set[int]]:
    """Axes that differ from a known call; sizes 0 and 1 get programs of their own, because they broadcast."""
    changed: dict[int, set[int]] = {}
    for old in known:
        for index, shape in shapes.items():
            axes = {a for a, size in enumerate(shape) if size > 1 and old[index][a] != size}
            if axes:
                changed.setdefault(index, set()).update(axes)
    return changed


@dataclass(frozen=True)
class Request:
    """What is to be compiled: a call, whose gradients are wanted, and the module's state as it stands."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    grad: bool
    snapshot: Snapshot
    owned: list[torch.Tensor]


def compile_call(module: nn.Module, call: Request, options: Options, dynamic: Any) -> Specialisation:
    """Trace and compile one call. Raises CaptureError, Unsupported or BuildError with the reason."""
    from daceopt import pipeline
    from daceopt.capture.trace import trace

    with _own_mode(call.grad):
        traced = trace(module, call.args, call.kwargs, dynamic=dynamic)
        wanted = [k for k, spec in enumerate(traced.inputs) if call.grad and _needs_gradient(spec, call)]
        pair = pipeline.compile_trace(
            traced,
            recipe=options.recipe,
            wanted=wanted,
            verify=options.verify,
            fallback=options.fallback != "raise",
        )
    program = Program(pair, len(traced.inputs), _mutations(traced))
    return Specialisation(traced, program, call.snapshot)


@contextmanager
def _own_mode(grad: bool) -> Iterator[None]:
    """Compilation inside a user's scope: its saved-tensor hooks (checkpointing) must not see what compilation does.

    The gradient mode is the call's own: what is traced under no_grad counts as detached.
    """
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with torch.inference_mode(False), torch.set_grad_enabled(grad), hooks:
        yield


def _needs_gradient(spec: Any, call: Request) -> bool:
    if spec.kind == "constant":
        return False
    tensor = call.leaves[spec.target] if spec.kind == "user" else call.owned[call.snapshot.position(spec.target)]
    return bool(tensor.requires_grad)


def _mutations(trace: Trace) -> dict[int, int]:
    """Position among the graph's outputs -> the input it is the new value of."""
    buffers = {s.target: k for k, s in enumerate(trace.inputs) if s.kind == "buffer"}
    found = {k: s.target for k, s in enumerate(trace.graph_outputs) if s.kind == "buffer_mutation"}
    missing = set(found.values()) - set(buffers)
    if missing:
        raise Unsupported(f"forward sets the buffers {sorted(map(str, missing))} without reading them")
    return {k: buffers[target] for k, target in found.items()}
