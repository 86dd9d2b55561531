"""The programs of one ONNX model: a single one, or one for each choice of the inputs that decide shapes.

A model whose shapes depend on the values of small inputs, or on sizes without names, is compiled at the first call
that brings them; later calls with the same ones find that program.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from daceopt import pipeline
from daceopt.capture.onnx.partition import split
from daceopt.capture.onnx.specialization import (
    ALL,
    MAX_ELEMENTS,
    NONE,
    InputRequirements,
    Sizes,
    bind,
    name_sizes,
    requirements,
)
from daceopt.errors import DaceoptError, ModelFileError, NotKnownYet, Unsupported
from daceopt.models.tail import Tail
from daceopt.runtime.bridge import TorchProgram

if TYPE_CHECKING:
    import numpy as np
    import onnx
    import torch

    from daceopt.capture.onnx.partition import Split
    from daceopt.codegen.bundle import Bundle
    from daceopt.models.tail import Tail
    from daceopt.passes.recipe import Recipe
    from daceopt.programs.compiled import CompiledPair

LIMIT = 32
"""Programs that are kept of one model; the least recently used goes first."""

Key = tuple[Any, ...]


class Compile(Protocol):
    """``pipeline.compile_model`` with its options; ``recipe``: another one."""

    def __call__(self, model: onnx.ModelProto, patient: bool, recipe: Recipe | None = None, /) -> CompiledPair: ...


def compiler(
    recipe: str | Recipe,
    *,
    verify: str | None = None,
    fallback: bool = True,
    bundle: Bundle | None = None,
    device: str = "cpu",
) -> Compile:
    """``pipeline.compile_model`` with these options."""

    def compile_(model: onnx.ModelProto, patient: bool, other: Recipe | None = None) -> CompiledPair:
        return pipeline.compile_model(
            model,
            recipe=other or recipe,
            verify=verify,
            fallback=fallback,
            patient=patient,
            bundle=bundle,
            device=device,
        )

    return compile_


class Variant:
    """A compiled program and which of the model's inputs it takes; the others are part of it, or of the tail.

    ``tail``: what of the model ONNX Runtime does after the program, of which the report then speaks. ``model``: what
    was compiled, and ``compile`` does that with another recipe. ``is_tuned``: has somebody looked for the fastest?
    """

    is_tuned = False

    def __init__(
        self,
        pair: CompiledPair,
        positions: Sequence[int],
        tail: Tail | None,
        model: onnx.ModelProto,
        compile: Callable[[Recipe], CompiledPair],  # noqa: A002
    ):
        self.positions = tuple(positions)
        self.tail, self.model, self.compile = tail, model, compile
        self.use(pair)

    def use(self, pair: CompiledPair) -> None:
        """Let a program of the same model take the place of the one before."""
        if self.tail is not None:
            pair.report = {**pair.report, "fallbacks": {**pair.report["fallbacks"], **self.tail.operators}}
        self.pair, self._program = pair, TorchProgram(pair, len(self.positions))

    def inputs_of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs of the program among those of the model."""
        return [tensors[k] for k in self.positions]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The program's outputs for all inputs of the model. Raises RunError."""
        return self._program(self.inputs_of(tensors))

    def fits(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Is the program for inputs of the model with these shapes?"""
        manifest = self.pair.forward.manifest
        if not manifest.assumptions:
            return True
        return not manifest.violations([shapes[self.positions[k]][axis] for k, axis in self._program.forward.symbols])


class Variants:
    """Compiles ``model`` at once where that is possible, else for each call's values and sizes; safe among threads.

    ``compile``: see :class:`Compile`. ``fallback``: what cannot be compiled
    may run in ONNX Runtime after the rest, with a warning. Raises Unsupported, at once if no call can make the model
    compile.
    """

    def __init__(self, model: onnx.ModelProto, compile: Compile, fallback: bool = True):  # noqa: A002
        self._model = name_sizes(model)
        self._compile = compile
        self._fallback = fallback
        self._announced: set[str] = set()
        constants = {t.name for t in model.graph.initializer}
        self._inputs = [v for v in self._model.graph.input if v.name not in constants]
        self._needs = InputRequirements()
        self._found: OrderedDict[Key, Variant | Exception] = OrderedDict()
        self._guard, self._building = threading.Lock(), threading.Lock()
        while not self.depends_on_calls and not self._found:
            self._advance(self._needs, self._key(self._needs, {}, {}), {}, {})
        self._only = None if self.depends_on_calls else self.latest  # calls decide nothing: no need to look for it

    @property
    def depends_on_calls(self) -> bool:
        """Is a program valid only for some values or sizes of the inputs?"""
        return bool(self._needs.values) or self._needs.sizes != NONE

    @property
    def input_names(self) -> list[str]:
        """The model's inputs, in order."""
        return [v.name for v in self._inputs]

    @property
    def dependence(self) -> str:
        """On what of a call its program depends, in words."""
        needs = self._needs
        sized = [v.name for v in self._inputs if v.name not in needs.values and needs.sizes and needs.is_open(v)]
        parts = [("values", sorted(needs.values)), ("sizes", sized)]
        return " or ".join(f"{what} of {', '.join(map(repr, names))}" for what, names in parts if names)

    @property
    def latest(self) -> Variant | None:
        """The program that was used last; None before the first call of a model that depends on its calls."""
        with self._guard:
            return next((v for v in reversed(self._found.values()) if isinstance(v, Variant)), None)

    def select(self, arrays: Callable[[int], np.ndarray], shapes: Sequence[tuple[int, ...]]) -> Variant:
        """The program for inputs of these shapes; ``arrays(k)`` is the value of input k, read only where it decides.

        Raises Unsupported, or DaceoptError for values that do not fit the model.
        """
        if self._only is not None and len(self._found) == 1 and self._only.fits(shapes):
            return self._only
        while True:
            base = self._needs
            variant = self._find(base, base, arrays, shapes)
            if variant is not None and not variant.fits(shapes):
                variant = self._find(base, replace(base, sizes=ALL), arrays, shapes)
            if variant is not None:
                return variant

    def _find(
        self,
        base: InputRequirements,
        needs: InputRequirements,
        arrays: Callable[[int], np.ndarray],
        shapes: Sequence[tuple[int, ...]],
    ) -> Variant | None:
        """The program for the values and sizes that ``needs`` names; None where more than ``base`` has to be known."""
        fixed = {v.name: needs.fixed_sizes(v, shape) for v, shape in zip(self._inputs, shapes, strict=True)}
        sizes = {name: shape for name, shape in fixed.items() if shape is not None}
        values = {v.name: self._value(v.name, arrays(k)) for k, v in enumerate(self._inputs) if v.name in needs.values}
        key = self._key(needs, values, sizes)
        variant = self._recall(key)
        if variant is None:
            with self._building:
                if self._needs is base and self._recall(key) is None:
                    try:
                        self._advance(needs, key, values, sizes)
                    except Exception as error:
                        if type(error) is DaceoptError:  # the inputs are wrong, not the model
                            raise
                        self._keep(key, error)  # not to be tried again for the same inputs
            variant = self._recall(key)
        if isinstance(variant, Exception):
            raise variant
        return variant

    def _recall(self, key: Key) -> Variant | Exception | None:
        with self._guard:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def _keep(self, key: Key, variant: Variant | Exception) -> None:
        with self._guard:
            self._found[key] = variant
            while len(self._found) > LIMIT:
                self._found.popitem(last=False)

    def _advance(
        self, needs: InputRequirements, key: Key, values: Mapping[str, np.ndarray], sizes: Mapping[str, Sizes]
    ) -> None:
        """One step on: a new program, or more that has to be known."""
        bound = self._bind(needs, values, sizes)
        parts: Split | None = None
        try:
            pair = self._attempt(needs, bound)
        except Unsupported:
            parts = self._split(needs, bound)
            if parts is None:
                raise
            bound = parts.native
            pair = self._attempt(needs, bound)
        if isinstance(pair, InputRequirements):
            self._needs = pair
            return
        fed_inputs = {v.name for v in bound.graph.input} - {t.name for t in bound.graph.initializer}
        positions = [k for k, v in enumerate(self._inputs) if v.name in fed_inputs]
        tail = self._tail(parts) if parts is not None else None
        self._keep(key, Variant(pair, positions, tail, bound, partial(self._again, bound)))

    def _attempt(self, needs: InputRequirements, model: onnx.ModelProto) -> CompiledPair | InputRequirements:
        """A program, or all that has to be known for one."""
        try:
            return self._compile(model, True)
        except NotKnownYet as gap:
            more = self._more(needs, model, gap)
            if more is not None:
                return more
        return self._compile(model, False)  # runs what is unknown elsewhere, or says why it cannot

    def _again(self, model: onnx.ModelProto, recipe: Recipe) -> CompiledPair:
        """The program of a model that was compiled before, with another recipe."""
        try:
            return self._compile(model, True, recipe)
        except NotKnownYet:
            return self._compile(model, False, recipe)

    def _split(self, needs: InputRequirements, model: onnx.ModelProto) -> Split | None:
        if not self._fallback:
            return None
        return split(model, lambda gap: self._more(needs, model, gap) is None)

    def _tail(self, parts: Split) -> Tail:
        """What runs after the program; it is announced once."""
        tail = Tail(self.input_names, [v.name for v in self._model.graph.output], parts)
        if str(tail) not in self._announced:
            self._announced.add(str(tail))
            tail.announce()
        return tail

    def _bind(
        self, needs: InputRequirements, values: Mapping[str, np.ndarray], sizes: Mapping[str, Sizes]
    ) -> onnx.ModelProto:
        if not values and not sizes and not needs.folded:
            return self._model
        try:
            return bind(self._model, values, sizes, needs.folded)
        except ModelFileError as error:
            if not values and not sizes:
                raise
            inputs = {**{n: v.tolist() for n, v in values.items()}, **{n: list(s) for n, s in sizes.items()}}
            raise DaceoptError(
                f"the model does not fit these values and sizes of its inputs: {inputs}: {error}"
            ) from error

    def _more(self, needs: InputRequirements, bound: onnx.ModelProto, gap: NotKnownYet) -> InputRequirements | None:
        """What to ask for after ``gap``; None when nothing more would help."""
        missing = requirements(bound, gap)
        if missing is None:
            return None
        more = needs | missing
        if more == needs:
            more = replace(needs, sizes=ALL)
        return None if more == needs else more

    def _value(self, name: str, array: np.ndarray) -> np.ndarray:
        if array.size > MAX_ELEMENTS:
            raise Unsupported(
                f"shapes depend on the values of input {name!r}, which has {array.size} elements; a program is "
                f"compiled for each value of at most {MAX_ELEMENTS}"
            )
        return array

    @staticmethod
    def _key(needs: InputRequirements, values: Mapping[str, np.ndarray], sizes: Mapping[str, Sizes]) -> Key:
        return (needs, *((n, v.shape, v.tobytes()) for n, v in values.items()), *sizes.items())
