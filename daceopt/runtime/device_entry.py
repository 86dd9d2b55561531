"""A built program whose arrays live on a device: memory of torch's allocator, on torch's current stream, no waiting.

What a call looks up is looked up without torch's Python layer, which costs more than the start of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from daceopt.errors import DaceoptError
from daceopt.runtime import device_graphs
from daceopt.runtime.executable import Executable
from daceopt.runtime.invocation import KNOWN_SIZES, ExecutableEntry
from daceopt.runtime.manifest import Manifest
from daceopt.runtime.strides import row_major
from daceopt.torch_internals import cuda_state
from daceopt.torch_internals.profiling import ACTIVE, PROFILERS


def entry_of(executable: Executable) -> ExecutableEntry:
    """How ``executable`` is called on tensors of the host, or of the device for which it was built."""
    return DeviceEntry(executable) if executable.manifest.has_stream else ExecutableEntry(executable)


def place_of(manifest: Manifest, tensors: Iterable[torch.Tensor]) -> torch.device:
    """Where a program runs that is called on ``tensors``: on the first device among theirs that is of its kind."""
    kind = manifest.device
    return next((t.device for t in tensors if t.device.type == kind), torch.device(kind))


class DeviceEntry(ExecutableEntry):
    """A program for any device of its kind: ``place`` gives the entry for the one on which a call's tensors are."""

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable)
        self._kind: str = executable.manifest.device
        self._placed: dict[torch.device, PlacedEntry] = {}

    def place(self, tensors: list[torch.Tensor]) -> ExecutableEntry:
        """The entry for the one device of ``tensors``; numbers (tensors without dimensions) of the host are moved.

        Raises DaceoptError for tensors elsewhere, or on several devices.
        """
        places = {t.device for t in tensors}
        if len(places) == 1 and (constants := self._placed.get(places.pop())) is not None:
            return constants
        device = self._device_of(tensors)
        for k, tensor in enumerate(tensors):
            if tensor.device != device and not tensor.ndim:
                tensors[k] = tensor.to(device, non_blocking=True)
        entry = self._placed.get(device)
        if entry is None:
            entry = self._placed[device] = PlacedEntry(self.executable, device)
            entry.forms = self.forms
        return entry

    def places(self) -> list[ExecutableEntry]:
        return list(self._placed.values())

    def _device_of(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        devices = {t.device for t in tensors if t.ndim and t.numel()}
        devices = devices or {t.device for t in tensors if t.device.type == self._kind}
        if not devices:
            return torch.device(self._kind, torch.cuda.current_device() if self._kind == "cuda" else None)
        if len(devices) > 1 or next(iter(devices)).type != self._kind:
            listed = ", ".join(sorted(map(str, devices)))
            raise DaceoptError(
                f"the inputs of a program for {self._kind} are on {listed}; expected one {self._kind} device: "
                f"move the module and its inputs there with .to({self._kind!r})"
            )
        return devices.pop()


class PlacedEntry(ExecutableEntry):
    """A program on one device. Its blocks are torch's: what a call frees is used again in the order of its stream."""

    def __init__(self, executable: Executable, device: torch.device) -> None:
        super().__init__(executable)
        self._device = device
        self.allocator = partial(_allocator, device)
        # kept here as long as the program may be called
        self._constants = [torch.tensor(c, device=device) for c in executable.constants]
        self.constants = [c.data_ptr() for c in self._constants]
        self._scratch: dict[int, Callable[[], torch.Tensor]] = {}  # bytes -> what allocates an arena
        manifest = executable.manifest
        self.graphs = device_graphs.graphs_for(device, len(manifest.kernels)) if manifest.repeats else None
        self._current, self._stream = _current_device(device), _current_stream(device)

    def stream(self) -> tuple[int, ...]:
        return (self._stream(),)

    def wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.executable.raise_earlier()

    def invoke(
        self,
        inputs: Sequence[int],
        outputs: Sequence[torch.Tensor],
        saved: torch.Tensor | None,
        seed: int | None,
        symbols: tuple[int, ...],
        arena_bytes: int,
    ) -> None:
        """Start the program on the current stream of its device."""
        if self._current() != self._device.index:
            with torch.cuda.device(self._device):
                self._start(inputs, outputs, saved, seed, symbols, arena_bytes)
        else:
            self._start(inputs, outputs, saved, seed, symbols, arena_bytes)

    def _start(
        self,
        inputs: Sequence[int],
        outputs: Sequence[torch.Tensor],
        saved: torch.Tensor | None,
        seed: int | None,
        symbols: tuple[int, ...],
        arena_bytes: int,
    ) -> None:
        written = [*[t.data_ptr() for t in outputs], 0 if saved is None else saved.data_ptr()]

        def start(seeds: torch.Tensor | None) -> None:
            # fresh in each call: of two streams, or a graph of torch and a call beside it, each has its own
            arena = self._arena(arena_bytes) if arena_bytes else None
            scratch = [0 if block is None else block.data_ptr() for block in (arena, seeds)]
            run = self.run_in_events if PROFILERS[ACTIVE] else self.executable.run
            run([*inputs, *self.constants, *written, *scratch, self._stream()], symbols)

        # the kernels of a graph that is launched as a whole would have no names in a trace
        if self.graphs is not None and not device_graphs.are_recorded() and not PROFILERS[ACTIVE]:
            self.executable.raise_earlier()
            key = (self._stream(), symbols, *inputs, *written, *cuda_state.library_modes())
            if self.graphs.launch(key, start, seed):
                return
        # filled by a kernel, whose argument the number is: nothing is copied from the host
        start(None if seed is None else torch.full((1,), seed, dtype=torch.int64, device=self._device))

    def _arena(self, nbytes: int) -> torch.Tensor:
        make = self._scratch.get(nbytes)
        if make is None:
            if len(self._scratch) >= KNOWN_SIZES:
                self._scratch.clear()
            make = self._scratch[nbytes] = self.allocator((nbytes,), torch.uint8)
        return make()


def _allocator(
    device: torch.device, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None
) -> Callable[[], torch.Tensor]:
    """What allocates a tensor, again and again. On the only device of its kind it is the function by which Inductor's
    code allocates, which takes the current device and no dispatcher; elsewhere a tensor like one without memory, which
    takes half the time of one whose type and device are said.
    """
    if device.type == "cuda" and torch.cuda.device_count() == 1:
        return partial(cuda_state.empty_strided_cuda, shape, row_major(shape) if strides is None else strides, dtype)
    pattern = torch.empty_strided(shape, row_major(shape) if strides is None else strides, dtype=dtype, device=device)
    pattern.untyped_storage().resize_(0)
    return partial(torch.empty_like, pattern)


def _current_device(device: torch.device) -> Callable[[], int | None]:
    """What gives the index of the current device of this kind."""
    if device.type != "cuda":
        return lambda: device.index
    return cuda_state.current_device_getter()


def _current_stream(device: torch.device) -> Callable[[], int]:
    """What gives the address of the stream on which torch's own operators would run on ``device``."""
    if device.type != "cuda":
        return lambda: 0
    return cuda_state.current_stream_getter(device)
