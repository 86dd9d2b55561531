"""``trace`` runs ``torch.export`` on one call of a module and describes the resulting functional graph and its
bindings.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from daceopt.capture.dynamic import flat_specs, ties
from daceopt.capture.fingerprint import fingerprint
from daceopt.capture.flat import FlatCall
from daceopt.capture.functional import functional
from daceopt.capture.gradient_scopes import detach_no_grad_regions
from daceopt.capture.quiet import quiet
from daceopt.capture.replica import Replica
from daceopt.errors import CaptureError

if TYPE_CHECKING:
    import onnx

_PREFIX = "root."  # where FlatCall keeps the user's module


@dataclass(frozen=True)
class InputSpec:
    """One input of the graph.

    ``kind``: "parameter", "buffer", "constant" or "user". ``target``: qualified name in the module; for a user input
    its index among the flat leaves of (args, kwargs). ``shape``: ints, and text for symbolic dimensions. ``value``:
    the tensor of a constant.
    """

    kind: str
    target: str | int
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    value: torch.Tensor | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class OutputSpec:
    """One result of the call.

    ``kind``: "buffer_mutation" (new value of buffer ``target``) and "user" are outputs of the graph. The others fill
    the flat result without computation: "input" returns graph input ``source`` itself, "alias" equals output
    ``source`` of ``Trace.outputs``, "constant" is the Python ``value``. ``target`` of all but mutations is the index
    in the flat result.
    """

    kind: str
    target: str | int
    dtype: torch.dtype | None = None
    shape: tuple[int | str, ...] = ()
    source: int | None = None
    value: Any = None


@dataclass(frozen=True)
class Trace:
    """A functional graph of one call, and what binds it to the module and to the call's arguments."""

    program: ExportedProgram
    inputs: list[InputSpec]
    outputs: list[OutputSpec]
    in_tree: pytree.TreeSpec
    out_tree: pytree.TreeSpec
    symbols: dict[str, tuple[int, int]]  # name -> (input, axis) where its value is read
    ranges: dict[
        str, tuple[int, int | None]
    ]  # name -> smallest and largest value the graph is valid for (None: no limit)
    call_constants: dict[int, Any]  # flat input index -> Python value that the graph was specialised for
    training: bool
    guards: tuple[str, ...] = ()  # further conditions on the symbols, as Python expressions

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the graph is valid for these values of ``symbols``: within ``ranges``, and all ``guards`` true."""
        for name, (low, high) in self.ranges.items():
            if sizes[name] < low or (high is not None and sizes[name] > high):
                return False
        return all(_evaluate(guard, sizes) for guard in self.guards)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the graph, stable between processes; the key of compiled code."""
        parts: list[object] = [torch.__version__, self.training, sorted(self.ranges.items())]
        parts += [(s.kind, s.target, s.dtype, s.shape) for s in self.inputs]
        parts += [(s.kind, s.target, s.dtype, s.shape, s.source) for s in self.outputs]
        return fingerprint(self.program.graph_module, parts, [s.value for s in self.inputs if s.value is not None])

    @property
    def graph_outputs(self) -> list[OutputSpec]:
        """The outputs that the graph computes, in the order of the ONNX model's outputs."""
        return [spec for spec in self.outputs if spec.kind in ("buffer_mutation", "user")]

    def to_onnx(self) -> onnx.ModelProto:
        """The same graph as a checked ONNX model: one input per ``inputs``, one output per ``graph_outputs``; made
        once.
        """
        return self._onnx

    @cached_property
    def _onnx(self) -> onnx.ModelProto:
        from daceopt.capture.to_onnx import to_onnx

        return to_onnx(self)


def trace(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, dynamic: Any = None
) -> Trace:
    """Trace ``module(*args, **kwargs)`` in the module's present mode; neither runs nor changes it.

    The hooks of ``module`` itself are not traced, those of its children are. A ``forward`` set by daceopt (with the
    attribute ``daceopt_original``) stands for the forward it wraps. ``dynamic`` as in ``capture.dynamic.flat_specs``.

    Raises ``CaptureError`` with the reason when the call is not a static graph of tensor operations.
    """
    leaves, in_tree = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
    _check_names(module)
    replica = Replica(module)
    specs = flat_specs(dynamic, leaves, in_tree, replica.root.forward)
    flat = FlatCall(replica, leaves, in_tree, ties(specs, leaves))
    tensors = [leaves[i] for i in flat.call.in_tensors]
    program = _export(flat, tensors, [specs.get(i) for i in flat.call.in_tensors])
    return _describe(program, flat, module, tensors)


def _check_names(module: nn.Module) -> None:
    """torch.fx writes names of attributes into Python code, between quotes and unescaped, and runs it."""
    for name in (
        n for found in (module.named_modules(), module.named_parameters(), module.named_buffers()) for n, _ in found
    ):
        if re.search(r'["\\\x00-\x1f\x7f]', name):
            raise CaptureError(
                f"the model cannot be traced: the name {name[:100]!r} of a parameter, buffer or child holds a quote, "
                "a backslash or a control character; rename it"
            )


def _export(flat: FlatCall, tensors: list[torch.Tensor], specs: list[Any]) -> ExportedProgram:
    shapes = {"tensors": tuple(specs)} if any(specs) else None
    try:
        with quiet(), _unmarked(tensors), torch.random.fork_rng(devices=[]):
            program = torch.export.export(flat, tuple(tensors), strict=False, dynamic_shapes=shapes)
            detach_no_grad_regions(program)
            return functional(program)
    except CaptureError:
        raise
    except Exception as error:  # torch raises whatever the user's code or the tracer raised
        raise CaptureError(f"the model cannot be traced: {_reason(error)}") from error


@contextmanager
def _unmarked(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Take back the marks of dynamic dimensions that torch.export leaves on the caller's tensors: they would bind the
    next export of the same tensors.
    """
    before = [dict(vars(t)) for t in tensors]
    try:
        yield
    finally:
        for tensor, attributes in zip(tensors, before, strict=True):
            vars(tensor).clear()
            vars(tensor).update(attributes)


def _reason(error: BaseException) -> str:
    """The lines of a torch error that tell what happened, without advice on torch's own switches."""
    while not str(error).strip() and error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip().split(" For more information")[0] for line in str(error).splitlines() if line.strip()]
    detail = [line for line in lines[1:] if line.startswith(("- ", "File "))][-1:]
    return f"{type(error).__name__}: {' '.join([*(lines[:1] or ['no message']), *detail])}"


def _describe(program: ExportedProgram, flat: FlatCall, module: nn.Module, tensors: list[torch.Tensor]) -> Trace:
    _refuse_unknown_sizes(program)
    inputs = _inputs(program, flat, module)
    assert flat.call.out_tree is not None
    symbols = {
        d: (i, axis) for i, s in reversed(list(enumerate(inputs))) for axis, d in enumerate(s.shape) if _symbol(d)
    }
    used = {word for s in inputs for d in s.shape if isinstance(d, str) for word in re.findall(r"\w+", d)}
    traced = Trace(
        program=program,
        inputs=inputs,
        outputs=_outputs(program, flat),
        in_tree=flat.call.in_tree,
        out_tree=flat.call.out_tree,
        symbols={str(name): place for name, place in symbols.items()},
        ranges={str(s): _range(r) for s, r in program.range_constraints.items() if str(s) in used},
        call_constants=flat.call.in_constants,
        training=module.training,
        guards=_guards(program, [s for s in inputs if s.kind == "user"]),
    )
    _check_guards(traced, tensors)
    return traced


def _symbol(dim: int | str) -> bool:
    return isinstance(dim, str) and dim.isidentifier()


def _range(bounds: Any) -> tuple[int, int | None]:
    upper = bounds.upper
    return int(bounds.lower), int(upper) if upper.is_Integer and int(upper) < 2**62 else None


def _guards(program: ExportedProgram, users: list[InputSpec]) -> tuple[str, ...]:
    """What tracing assumed of dynamic sizes beyond their ranges ("s95 % 2 == 0"), with torch's paths replaced by
    symbols.
    """

    def size(match: re.Match[str]) -> str:
        return f"({users[int(match[1])].shape[int(match[2])]})"

    path = re.compile(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
    return tuple(dict.fromkeys(path.sub(size, guard) for guard in program._guards_code))


def _check_guards(traced: Trace, tensors: list[torch.Tensor]) -> None:
    """The guards hold for the very call that was traced; what cannot be read is refused now rather than skipped
    later.
    """
    users = [s for s in traced.inputs if s.kind == "user"]
    shapes = [(s.shape, tuple(t.shape)) for s, t in zip(users, tensors, strict=True)]
    sizes = {d: n for shape, found in shapes for d, n in zip(shape, found, strict=True) if isinstance(d, str)}
    for guard in traced.guards:
        try:
            held = _evaluate(guard, sizes)
        except Exception as error:  # a name or form that torch did not use before
            raise CaptureError(f"torch's condition on the sizes cannot be evaluated: {guard}") from error
        if not held:
            raise CaptureError(f"the call does not meet torch's own condition on its sizes: {guard}")


def _evaluate(guard: str, sizes: Mapping[str, int]) -> bool:
    return bool(eval(guard, {"__builtins__": {"min": min, "max": max}}, dict(sizes)))


def _refuse_unknown_sizes(program: ExportedProgram) -> None:
    for node in program.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, list | tuple) else [values]:
            if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat) and free_unbacked_symbols(value):
                raise CaptureError(
                    f"{node.target} gives a result whose size or value depends on the data ({node.name})"
                )


def _inputs(program: ExportedProgram, flat: FlatCall, module: nn.Module) -> list[InputSpec]:
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    owned = _Owned(module)
    users = iter(flat.call.in_tensors)
    kinds = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}
    found = []
    for spec in program.graph_signature.input_specs:
        fake = values[spec.arg.name]
        if not isinstance(fake, torch.Tensor):
            raise CaptureError(f"the graph takes {spec.arg.name}, a {type(fake).__name__}; expected tensors only")
        target = (spec.target or "").removeprefix(_PREFIX)
        if spec.kind is InputKind.USER_INPUT:
            found.append(InputSpec("user", next(users), fake.dtype, _shape(fake)))
        elif spec.kind in kinds:
            found.append(InputSpec(kinds[spec.kind], target, fake.dtype, _shape(fake)))
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            found.append(owned.constant(target, program.constants[str(spec.target)]))
        else:
            raise CaptureError(f"the graph takes {spec.arg.name} of kind {spec.kind.name}; expected tensors only")
    return found


class _Owned:
    """Finds the parameter or buffer behind a tensor that the exporter took for a constant (reached through a list,
    say).
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def constant(self, name: str, value: torch.Tensor) -> InputSpec:
        kinds: list[tuple[str, Iterable[tuple[str, torch.Tensor]]]] = [
            ("parameter", self.module.named_parameters()),
            ("buffer", self.module.named_buffers()),
        ]
        for kind, tensors in kinds:
            for target, tensor in tensors:
                if _same_memory(tensor, value):
                    return InputSpec(kind, target, tensor.dtype, tuple(tensor.shape))
        if _is_trainable_elsewhere(value):
            raise CaptureError(
                f"forward reads a trainable tensor {tuple(value.shape)} that is not a parameter of "
                f"{type(self.module).__name__}; register it (nn.Parameter attribute, nn.ModuleList, nn.ParameterList)"
            )
        return InputSpec("constant", name, value.dtype, tuple(value.shape), value)


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    same_type = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    return same_type and a.numel() > 0 and a.data_ptr() == b.data_ptr()


def _is_trainable_elsewhere(value: torch.Tensor) -> bool:
    if not value.dtype.is_floating_point or value.numel() == 0:
        return False
    tensors = (x for x in gc.get_objects() if type(x) in (torch.Tensor, nn.Parameter))
    return any(t.requires_grad and t.layout is torch.strided and _same_memory(t, value) for t in tensors)


def _outputs(program: ExportedProgram, flat: FlatCall) -> list[OutputSpec]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    positions = {spec.arg.name: i for i, spec in enumerate(program.graph_signature.input_specs)}
    users = iter(flat.call.out_tensors)
    seen: dict[str, int] = {}
    found: list[OutputSpec] = []
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", "")
        fake = values.get(name)
        if spec.kind not in (OutputKind.BUFFER_MUTATION, OutputKind.USER_OUTPUT) or not isinstance(fake, torch.Tensor):
            raise CaptureError(_unsupported_output(spec))
        mutation = spec.kind is OutputKind.BUFFER_MUTATION
        target: str | int = str(spec.target).removeprefix(_PREFIX) if mutation else next(users)
        if name in positions and not mutation:
            found.append(OutputSpec("input", target, fake.dtype, _shape(fake), positions[name]))
        elif name in seen and not mutation:
            found.append(OutputSpec("alias", target, fake.dtype, _shape(fake), seen[name]))
        else:
            seen.setdefault(name, len(found))
            found.append(OutputSpec("buffer_mutation" if mutation else "user", target, fake.dtype, _shape(fake)))
    return found + [OutputSpec("constant", i, value=v) for i, v in flat.call.out_constants.items()]


def _unsupported_output(spec: Any) -> str:
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return "forward changes one of its inputs in place; work on a copy (x = x.clone())"
    if spec.kind is OutputKind.PARAMETER_MUTATION:
        return f"forward changes the parameter {str(spec.target).removeprefix(_PREFIX)!r} in place"
    return f"the graph has an output of kind {spec.kind.name} ({spec.arg}); expected tensors"


def _shape(value: torch.Tensor) -> tuple[int | str, ...]:
    return tuple(d if isinstance(d, int) else str(d.node) for d in value.shape)
