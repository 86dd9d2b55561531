"""``daceopt.from_sdfg``: a program that DaCe's frontend made, as a callable that is optimized and has gradients."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from daceopt import pipeline
from daceopt.capture.dace.importer import ImportedSdfg, import_sdfg
from daceopt.errors import DaceoptError, did_you_mean
from daceopt.ir.control.imported import Gradients, Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import types
from daceopt.ir.text.render import render
from daceopt.passes.choice import recipe_for
from daceopt.programs.plain import plain
from daceopt.runtime.bridge import TorchProgram
from daceopt.runtime.places import common_device
from daceopt.runtime.tensors import as_tensor, to_numpy
from daceopt.store.cache import key

if TYPE_CHECKING:
    import dace

    from daceopt.passes.recipe import Recipe
    from daceopt.programs.compiled import CompiledPair


def from_sdfg(
    program: object, recipe: str | Recipe = "auto", *, sizes: Mapping[str, int] | None = None, verify: str | None = None
) -> SdfgProgram:
    """Compile a program of DaCe: a ``@dace.program`` with annotated arguments, an SDFG, or a file of one.

    The result is called with the arguments that the program reads, and returns what it returns, then the new values of
    arguments that it writes; nothing that is passed changes. Extents may be symbols; ``sizes`` gives symbols that are
    no extents, such as bounds of loops, a value. Supported is dataflow: maps with tasklets in Python, reductions,
    matrix products, copies, views that are read, loops with numbers as bounds. Raises Unsupported for all else, with
    the state and the node, and DaceoptError for what is no program.
    """
    return SdfgProgram(import_sdfg(_sdfg(program), sizes), recipe, verify)


def _sdfg(program: object) -> dace.SDFG:
    import dace

    if isinstance(program, (str, Path)):
        if not Path(program).is_file():
            raise DaceoptError(f"there is no file {str(program)!r}; expected an SDFG that sdfg.save wrote")
        return dace.SDFG.from_file(str(program))
    if isinstance(program, dace.SDFG):
        return program
    if hasattr(program, "to_sdfg"):
        return program.to_sdfg(simplify=False)
    raise DaceoptError(f"from_sdfg takes a @dace.program, an SDFG or a file of one, not {type(program).__name__}")


class SdfgProgram:
    """A compiled program of DaCe. NumPy in gives NumPy out, torch in gives torch out on the device of the tensors, with
    gradients where one of them requires them; arrays and numbers beside tensors of a device are copied there.

    One result is returned as it is, several as a list in the order of ``output_names``. Any number of threads may call
    it. Raises DaceoptError for a wrong number, name, dtype, shape or device of arguments, with what was expected.
    """

    def __init__(self, imported: ImportedSdfg, recipe: str | Recipe, verify: str | None):
        self.input_names, self.output_names = imported.inputs, imported.outputs
        self._graph, self._recipe, self._verify = imported.graph, recipe, verify
        self._identity = self._fingerprint()
        self._programs: dict[tuple[str, tuple[int, ...]], TorchProgram] = {}  # by device, and gradients
        self._latest: CompiledPair | None = None
        self._lock = threading.Lock()
        self._arguments = [
            _Argument(self._graph, name, array) for name, array in zip(imported.inputs, self._graph.inputs)
        ]

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        values = self._bind(args, kwargs)
        named = {f"input {n!r}": v for n, v in zip(self.input_names, values) if isinstance(v, torch.Tensor)}
        place = common_device(named) or torch.device("cpu")
        tensors = [argument.tensor(v, place) for argument, v in zip(self._arguments, values, strict=True)]
        self._check_shapes(tensors)
        wrt = tuple(k for k, t in enumerate(tensors) if t.requires_grad) if torch.is_grad_enabled() else ()
        results = list(self._program(place.type, wrt)(tensors))
        if not named:
            kinds = [types.to_numpy(self._graph.dtype(name)) for name in self._graph.outputs]
            results = [to_numpy(t, kind) for t, kind in zip(results, kinds, strict=True)]
        return results[0] if len(results) == 1 else results

    @property
    def sdfg(self) -> dace.SDFG:
        """The optimized forward graph, as plain DaCe runs it."""
        return plain(self.pair.graphs.forward).sdfg

    @property
    def backward_sdfg(self) -> dace.SDFG | None:
        """The graph of its gradients in the same form; None where none were asked for."""
        backward = self.pair.graphs.backward
        return None if backward is None else plain(backward).sdfg

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per step of the recipe."""
        return list(self.pair.report["history"])

    @property
    def pair(self) -> CompiledPair:
        """The program that was compiled last; one for inference is compiled where there is none."""
        if self._latest is None:
            self._program("cpu", ())
        assert self._latest is not None
        return self._latest

    # ---------------------------------------------------------------- programs

    def _fingerprint(self) -> str:
        large: dict[str, np.ndarray] = {}
        text = render(self._graph, large)
        arrays = [*sorted(large.items()), *sorted(self._graph.constants.items())]  # text has one NaN for all
        return key("sdfg", text, *(part for n, v in arrays for part in (n, v.tobytes())))

    def _program(self, device: str, wrt: tuple[int, ...]) -> TorchProgram:
        """The program for this kind of device that gives the gradients of these inputs."""
        with self._lock:
            if (device, wrt) not in self._programs:
                self._latest = self._compile(device, wrt)
                self._programs[device, wrt] = TorchProgram(self._latest, len(self._arguments))
            return self._programs[device, wrt]

    def _compile(self, device: str, wrt: tuple[int, ...]) -> CompiledPair:
        graph = self._graph
        outputs = tuple(k for k, n in enumerate(graph.outputs) if types.is_float(graph.dtype(n)))
        gradients = Gradients(wrt, outputs) if wrt and outputs else None

        def load(target: str) -> Imported:
            own = graph.copy()
            own.options = replace(own.options, target=target)
            return Imported(own, gradients, device=device)

        identity, recipe = key(self._identity, device, list(wrt)), recipe_for(device, self._recipe)
        return pipeline.compile_graph(identity, load, recipe=recipe, verify=self._verify)

    # ---------------------------------------------------------------- arguments

    def _bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Any]:
        rest = self.input_names[len(args) :]
        unknown = sorted(set(kwargs) - set(rest))
        if len(args) > len(self.input_names) or set(kwargs) != set(rest):
            near = did_you_mean(unknown[0], rest) if unknown else ""
            raise DaceoptError(
                f"expected the inputs {self.input_names}, by position or by name; "
                f"got {len(args)} by position and {sorted(kwargs)}{near}"
            )
        return [*args, *(kwargs[name] for name in rest)]

    def _check_shapes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Compare extents with what the sizes of this call make of the program's."""
        place = dict(zip(self._graph.inputs, tensors, strict=True))
        sizes = {symbol: place[name].shape[axis] for symbol, (name, axis) in self._graph.symbols.items()}
        for argument, tensor in zip(self._arguments, tensors, strict=True):
            argument.check_shape(tensor, sizes)


class _Argument:
    """Name, type and extents that the program declares for an input."""

    def __init__(self, graph: Graph, name: str, array: str):
        self.name, self.shape = name, graph.shape(array)
        self._numpy, self._torch = types.to_numpy(graph.dtype(array)), types.to_torch(graph.dtype(array))

    def tensor(self, value: object, place: torch.device) -> torch.Tensor:
        """``value`` as a tensor there, of the right type and rank; a bare number where the program takes one."""
        if isinstance(value, (bool, int, float)) and not self.shape:
            value = np.asarray(value, self._numpy)
        tensor = value if isinstance(value, torch.Tensor) else as_tensor(value, self._numpy, self._torch)
        if tensor is None or tensor.dtype != self._torch or tensor.dim() != len(self.shape):
            what = type(value).__name__ if tensor is None else f"{tensor.dtype} of shape {list(tensor.shape)}"
            raise DaceoptError(f"input {self.name!r}: expected {self._torch} of shape {list(self.shape)}, got {what}")
        return tensor.to(place)

    def check_shape(self, tensor: torch.Tensor, sizes: Mapping[str, int]) -> None:
        """Raise DaceoptError for another extent than the program's under these sizes."""
        for axis, (extent, actual) in enumerate(zip(self.shape, tensor.shape, strict=True)):
            free = getattr(extent, "free_symbols", ())
            expected = extent if isinstance(extent, int) else int(extent.subs({s: sizes[str(s)] for s in free}))
            if expected != actual:
                shown = f"{expected} ({extent})" if free else expected
                raise DaceoptError(f"input {self.name!r}, axis {axis}: expected {shown}, got {actual}")
