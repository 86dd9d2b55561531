"""``daceopt.from_onnx``: an ONNX model as a callable."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from daceopt.capture.onnx.file import load
from daceopt.errors import DaceoptError, FallbackWarning, RunError, RunIndexError, Unsupported, VerificationError
from daceopt.libs.onnxruntime_model import RuntimeModel
from daceopt.logs import caller_depth
from daceopt.models.index_errors import culprit
from daceopt.models.variants import Compile, Variant, Variants, compiler
from daceopt.passes.choice import recipe_for
from daceopt.programs.plain import plain
from daceopt.programs.stats import Stats
from daceopt.programs.tuning.budget import tuning_budget
from daceopt.programs.tuning.result import TuningRecord
from daceopt.programs.tuning.search import Contender, Search
from daceopt.runtime.bridge import TorchProgram
from daceopt.runtime.invocation import torch_dtype
from daceopt.runtime.places import common_device, device_of
from daceopt.runtime.tensors import as_tensor, dtype_of, to_numpy, to_torch
from daceopt.store.cache import key

if TYPE_CHECKING:
    import dace
    import onnx

    from daceopt.codegen.bundle import Bundle
    from daceopt.libs.onnxruntime_model import RuntimeModel
    from daceopt.passes.recipe import Recipe
    from daceopt.programs.compiled import CompiledPair


def from_onnx(
    path_or_proto: str | Path | bytes | onnx.ModelProto,
    recipe: str | Recipe = "auto",
    fallback: bool = True,
    *,
    verify: str | None = None,
    bundle: Bundle | None = None,
    device: str | torch.device = "cpu",
    tune: bool | float | str | None = None,
) -> OnnxModel:
    """Compile an ONNX model for inference.

    Where shapes depend on the values of small inputs (integers, lists of a few floats) or on sizes without names, a
    program is compiled for each of them at the first call that brings it. ``fallback``: what has no native form runs in
    ONNX Runtime, operator by operator or, where that cannot be, as a whole, with a warning that gives the reason;
    without it, it raises Unsupported. ``bundle``: compile it together with other models, when the first of them runs.
    ``device``: where it runs on arrays of NumPy, and what it is compiled for at once; the first call with tensors on a
    device of another kind compiles it for that one. ``tune``: seconds in which the first call of each program looks for
    the fastest recipe, as for ``optimized_module``; ``stats.tuning`` has what it found.
    Raises ModelFileError for a damaged, invalid or unsafe file.
    """
    place = torch.device(device)
    seconds = tuning_budget(tune)
    if bundle is not None and seconds is not None:
        raise ValueError("tune and bundle are given; expected one of them: a bundle is compiled once, as a whole")

    def compile_for(kind: str) -> Compile:
        own = bundle if kind == place.type else None
        return compiler(recipe, verify=verify, fallback=fallback, bundle=own, device=kind)

    return OnnxModel(load(path_or_proto), compile_for, fallback, recipe, place, seconds)


class OnnxModel:
    """A compiled ONNX model. Call it with arrays by position or by input name; numpy in gives numpy out, torch in gives
    torch out, on the device of the inputs (arrays and numbers beside tensors of a device are copied there). ``device``:
    where calls with arrays alone run.

    One output is returned as it is, several as a list in the model's order. A wrong number, dtype or shape of inputs
    raises DaceoptError that says what was expected, as do tensors on several devices; an index out of range raises
    IndexError. Types that PyTorch lacks (of 4 bits, say) are ``ml_dtypes`` in numpy, and uint8 tensors with one element
    per byte in torch. Any number of threads may call it.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        compile_for: Callable[[str], Compile],
        fallback: bool,
        recipe: str | Recipe,
        device: torch.device,
        tune: float | None = None,
    ):
        constants = {t.name for t in model.graph.initializer}
        self._inputs = [v for v in model.graph.input if v.name not in constants]
        self.input_names = [v.name for v in self._inputs]
        self.output_names = [v.name for v in model.graph.output]
        self._model = model
        self.recipe = recipe
        self._fallback = fallback
        self.device = device
        self._compile_for, self._tune = compile_for, tune
        self._runtime: RuntimeModel | None = None
        self._expected: list[_Expectation | _Unchecked] = []
        self._results: list[np.dtype[Any] | None] = []
        self._of_kind: dict[str, Variants | None] = {}  # of device; None: in ONNX Runtime
        self._making = threading.Lock()
        self._stats = Stats()
        self._variants = self._variants_for(device.type)  # those of the last call

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        values = self._bind(args, kwargs)
        place = self._place_of(values)
        as_torch = any(isinstance(v, torch.Tensor) for v in values)
        variants = self._variants = self._variants_for(place.type)
        values_out = self._run_elsewhere(values) if variants is None else self._run(variants, values, place)
        results = [self._place(v, place) for v in values_out] if as_torch else self._arrays(values_out)
        return results[0] if len(results) == 1 else results

    def prepare(self, *args: object, **kwargs: object) -> None:
        """Compile what a call with these inputs needs, without running it. Raises as the call does."""
        values = self._bind(args, kwargs)
        place = self._place_of(values)
        variants = self._variants = self._variants_for(place.type)
        if variants is not None:
            self._select(variants, self._tensors(values, place))

    @property
    def source(self) -> onnx.ModelProto:
        """The checked, shape-inferred model."""
        return self._model

    @property
    def pair(self) -> CompiledPair:
        """The program in use and how it came about; DaceoptError while there is none."""
        variant = self._variants.latest if self._variants is not None else None
        if variant is None:
            state = "runs in ONNX Runtime" if self._variants is None else "is compiled at its first call"
            raise DaceoptError(f"there is no compiled program yet: the model {state}")
        return variant.pair

    @property
    def signature(self) -> list[str]:
        """Name, type and shape of each input, as far as the model says, in words."""
        expected = [_expectation(v) for v in self._inputs]
        return [f"{name}: {e}" for name, e in zip(self.input_names, expected, strict=True)]

    @property
    def dependence(self) -> str:
        """On what of a call its program depends, in words; empty where one program is for all calls."""
        return "" if self._variants is None else self._variants.dependence

    @property
    def sdfg(self) -> dace.SDFG:
        """The optimized graph, as plain DaCe runs it (:mod:`daceopt.programs.plain`): its arguments are the arrays and
        sizes of ``sdfg.arglist()``, and ``constants`` where it lists such.

        Raises Unsupported when plain DaCe cannot run it, with the reason.
        """
        return plain(self.pair.graphs.forward).sdfg

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """The weights that ``sdfg`` takes as arguments, by name: those too large for code."""
        return plain(self.pair.graphs.forward).constants

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per step of the recipe."""
        return list(self.pair.report["history"])

    @property
    def stats(self) -> Stats:
        return self._stats

    # ---------------------------------------------------------------- running

    def _variants_for(self, kind: str) -> Variants | None:
        """The programs for calls on this kind of device; None where such calls run in ONNX Runtime."""
        if kind in self._of_kind:
            return self._of_kind[kind]
        with self._making:
            if kind not in self._of_kind:
                start = time.perf_counter()
                variants: Variants | None = None
                try:
                    variants = Variants(self._model, self._compile_for(kind), self._fallback)
                    self._expected = [_expectation(v) for v in self._inputs]
                    self._results = [dtype_of(v) for v in self._model.graph.output]
                except Exception as error:
                    variants, self._runtime = None, self._instead(error)
                self._of_kind[kind] = variants
                self._stats.compile_seconds += time.perf_counter() - start
        return self._of_kind[kind]

    def _run(self, variants: Variants, values: Sequence[object], place: torch.device) -> Sequence[Any]:
        tensors = self._tensors(values, place)
        try:
            variant = self._select(variants, tensors)
        except Exception as error:
            return self._retry(values, error)
        try:
            if self._tune is not None and not variant.is_tuned:
                self._find_fastest(variant, tensors, self._tune)
            if self._stats.calls == 0:
                shapes = {f"input:{k}": tuple(tensors[p].shape) for k, p in enumerate(variant.positions)}
                self._stats.record(variant.pair, shapes)
            self._stats.calls += 1
            outputs = variant(tensors)
        except RunIndexError as error:
            raise RunIndexError(culprit(self._model, self._by_name(tensors))) from error
        except RunError as error:  # sizes that turned out otherwise than declared, most likely
            return self._retry(values, error)
        return outputs if variant.tail is None else variant.tail.run(tensors, outputs)

    def _find_fastest(self, variant: Variant, tensors: Sequence[torch.Tensor], seconds: float) -> None:
        """Let the program be the fastest of those that ``seconds`` are enough to try."""
        inputs, recipe = variant.inputs_of(tensors), recipe_for(device_of(tensors).type, self.recipe)

        def make(recipe: Recipe) -> Contender:
            pair = variant.compile(recipe)
            return Contender(partial(TorchProgram(pair, len(inputs)), inputs), pair.code)

        with self._making:
            if variant.is_tuned:
                return
            fingerprint = key("onnx", variant.model.SerializeToString(deterministic=True), self._fallback)
            record = TuningRecord(fingerprint, recipe, device_of(tensors))
            result = Search(record, recipe, make, seconds, trains=False).find()
            if result.recipe is not None:
                variant.use(variant.compile(result.recipe))
            variant.is_tuned = True
            self._stats.record_tuning(result)

    def _by_name(self, tensors: Sequence[object]) -> dict[str, np.ndarray]:
        arrays = (np.asarray(v.detach().cpu() if isinstance(v, torch.Tensor) else v) for v in tensors)
        return dict(zip(self.input_names, arrays, strict=True))

    def _select(self, variants: Variants, tensors: Sequence[Any]) -> Variant:
        def array(position: int) -> np.ndarray:
            return to_numpy(tensors[position].contiguous(), self._expected[position].dtype)

        return variants.select(array, [tuple(getattr(t, "shape", ())) for t in tensors])

    def _run_elsewhere(self, values: Sequence[object]) -> list[Any]:
        assert self._runtime is not None
        return self._runtime.run([v.detach().cpu().numpy() if isinstance(v, torch.Tensor) else v for v in values])

    def _retry(self, values: Sequence[object], error: Exception) -> list[Any]:
        """This call in ONNX Runtime, because of ``error``."""
        if self._runtime is None or not self._may_run_elsewhere(error):
            self._runtime = self._instead(error)
        return self._run_elsewhere(values)

    @staticmethod
    def _place(value: object, place: torch.device) -> Any:
        """A result as a tensor there, or as it is (lists, text)."""
        tensor = to_torch(value)
        return tensor.to(place) if isinstance(tensor, torch.Tensor) else tensor

    def _arrays(self, values: Sequence[object]) -> list[Any]:
        """Results as arrays, or as they are."""
        kinds = self._results or [None] * len(values)
        return [
            to_numpy(v, d) if isinstance(v, torch.Tensor) and d is not None else v
            for v, d in zip(values, kinds, strict=True)
        ]

    def _may_run_elsewhere(self, error: Exception) -> bool:
        """Not where the inputs are to blame, or where a verification that was asked for found wrong numbers."""
        of_inputs = isinstance(error, RunIndexError) or type(error) is DaceoptError
        verdict = isinstance(error, VerificationError) and error.__cause__ is None
        return self._fallback and not of_inputs and not verdict

    def _instead(self, error: Exception) -> RuntimeModel:
        """The whole model in ONNX Runtime, because of ``error``, or that error."""
        if not self._may_run_elsewhere(error):
            raise error
        reason = str(error) if isinstance(error, DaceoptError) else f"{type(error).__name__}: {error}"
        try:
            session = RuntimeModel(self._model)
        except Unsupported as other:
            raise Unsupported(f"{reason}; {other}") from error
        warnings.warn(f"the model runs in ONNX Runtime: {reason}", FallbackWarning, stacklevel=caller_depth())
        return session

    # ---------------------------------------------------------------- arguments

    def _bind(self, args: Sequence[object], kwargs: dict[str, Any]) -> list[Any]:
        rest = self.input_names[len(args) :]
        if len(args) > len(self.input_names) or set(kwargs) != set(rest):
            raise DaceoptError(
                f"expected the inputs {self.input_names}, by position or by name; "
                f"got {len(args)} by position and {sorted(kwargs)}"
            )
        return [*args, *(kwargs[name] for name in rest)]

    def _place_of(self, values: Sequence[object]) -> torch.device:
        """The device on which a call with these inputs runs."""
        tensors = {
            f"input {n!r}": v for n, v in zip(self.input_names, values, strict=True) if isinstance(v, torch.Tensor)
        }
        return common_device(tensors) or self.device

    def _tensors(self, values: Sequence[object], place: torch.device) -> list[Any]:
        """The inputs as tensors there; those that are none (text, sequences) as they are."""
        tensors = [e.tensor(v, place) for e, v in zip(self._expected, values, strict=True)]
        named: dict[str, int] = {}
        for expected, tensor in zip(self._expected, tensors, strict=True):
            expected.check_shape(tensor, named)
        return tensors


def _expectation(value: onnx.ValueInfoProto) -> _Expectation | _Unchecked:
    dtype = dtype_of(value)
    return _Unchecked(value) if dtype is None else _Expectation(value, dtype)


class _Unchecked:
    """An input that only ONNX Runtime reads, which checks it: text, a sequence."""

    dtype = np.dtype(object)

    def __init__(self, value: onnx.ValueInfoProto):
        self.is_tensor = value.type.HasField("tensor_type")
        self._kind = value.type.WhichOneof("value")

    def __str__(self) -> str:
        return "text" if self.is_tensor else str(self._kind).removesuffix("_type")

    def tensor(self, value: object, place: torch.device) -> Any:
        """``value``, as an array where it is to be a tensor."""
        return np.asarray(value) if self.is_tensor else value

    def check_shape(self, tensor: object, named: dict[str, int]) -> None:
        """Left to ONNX Runtime."""


class _Expectation:
    """Name, dtype and shape (ints, dimension names, None for any) that the model declares for an input."""

    def __init__(self, value: onnx.ValueInfoProto, dtype: np.dtype[Any]):
        tensor = value.type.tensor_type
        self.name = value.name
        self.dtype = dtype
        self.torch_dtype = torch_dtype(self.dtype.name)
        self.shape: list[int | str | None] | None = None
        if tensor.HasField("shape"):
            self.shape = [
                d.dim_param or (int(d.dim_value) if d.HasField("dim_value") else None) for d in tensor.shape.dim
            ]

    def tensor(self, value: object, place: torch.device) -> torch.Tensor:
        """``value`` as a tensor there, of the right type and rank; DaceoptError says what else it is."""
        tensor = as_tensor(value, self.dtype, self.torch_dtype)
        if tensor is None:
            raise DaceoptError(f"input {self.name!r}: expected {self}, got {_describe(value)}")
        wrong_rank = self.shape is not None and tensor.dim() != len(self.shape)
        if tensor.dtype != self.torch_dtype or wrong_rank:
            received = f"{tensor.dtype} of shape {list(tensor.shape)}"
            raise DaceoptError(f"input {self.name!r}: expected {self}, got {received}")
        return tensor.to(place)

    def check_shape(self, tensor: torch.Tensor, named: dict[str, int]) -> None:
        """Compare sizes; ``named`` has those of the dimension names seen so far."""
        for axis, (dimension, extent) in enumerate(zip(self.shape or (), tensor.shape)):
            if dimension is None:
                continue
            expected_extent = dimension if isinstance(dimension, int) else named.setdefault(dimension, extent)
            if expected_extent != extent:
                expected = expected_extent if isinstance(dimension, int) else f"{dimension} = {expected_extent}"
                raise DaceoptError(f"input {self.name!r}, axis {axis}: expected {expected}, got {extent}")

    def __str__(self) -> str:
        name = str(self.torch_dtype) if self.dtype.name in str(self.torch_dtype) else self.dtype.name
        return f"{name} of shape {self.shape}" if self.shape is not None else name


def _describe(value: object) -> str:
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
