"""A built program whose arrays live on a device: memory of torch's allocator, on torch's current stream, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from daceopt.errors import DaceoptError
from daceopt.runtime.invocation import ExecutableEntry


def entry_of(executable: Any) -> ExecutableEntry:
    """How ``executable`` is called on tensors of the host, or of the device for which it was built."""
    return DeviceEntry(executable) if executable.manifest.has_stream else ExecutableEntry(executable)


class DeviceEntry(ExecutableEntry):
    """A program for any device of its kind: ``placed`` gives the entry for the one on which a call's tensors are."""

    def __init__(self, executable: Any) -> None:
        super().__init__(executable)
        self._kind: str = executable.manifest.device
        self._placed: dict[torch.device, PlacedEntry] = {}

    def placed(self, tensors: list[torch.Tensor]) -> ExecutableEntry:
        """The entry for the one device of ``tensors``; numbers (tensors without dimensions) of the host are moved.

        Raises DaceoptError for tensors elsewhere, or on several devices.
        """
        device = self._device_of(tensors)
        for k, tensor in enumerate(tensors):
            if tensor.device != device and not tensor.ndim:
                tensors[k] = tensor.to(device, non_blocking=True)
        entry = self._placed.get(device)
        if entry is None:
            entry = self._placed[device] = PlacedEntry(self.executable, device)
        return entry

    def _device_of(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        found = {t.device for t in tensors if t.ndim and t.numel()}
        found = found or {t.device for t in tensors if t.device.type == self._kind}
        if not found:
            return torch.device(self._kind, torch.cuda.current_device() if self._kind == "cuda" else None)
        if len(found) > 1 or next(iter(found)).type != self._kind:
            listed = ", ".join(sorted(map(str, found)))
            raise DaceoptError(
                f"the inputs of a program for {self._kind} are on {listed}; expected one {self._kind} device: "
                f"move the module and its inputs there with .to({self._kind!r})"
            )
        return found.pop()


class PlacedEntry(ExecutableEntry):
    """A program on one device. Its blocks are torch's: what a call frees is used again in the order of its stream."""

    def __init__(self, executable: Any, device: torch.device) -> None:
        super().__init__(executable)
        self._device = device
        self.allocator = partial(_allocator, device)
        # kept here as long as the program may be called
        self._constants = [torch.from_numpy(c).to(device) for c in executable.constants]
        self.constants = [c.data_ptr() for c in self._constants]

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
        if self._device.type == "cuda" and torch.cuda.current_device() != self._device.index:
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
        arena = torch.empty(arena_bytes, dtype=torch.uint8, device=self._device)
        # filled by a kernel, whose argument the number is: nothing is copied from the host
        seeds = None if seed is None else torch.full((1,), seed, dtype=torch.int64, device=self._device)
        blocks = [*outputs, saved, arena, seeds]
        addresses = [0 if block is None else block.data_ptr() for block in blocks]
        self.executable.run([*inputs, *self.constants, *addresses, _stream(self._device)], symbols)


def _allocator(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    return partial(torch.empty, shape, dtype=dtype, device=device)


def _stream(device: torch.device) -> int:
    """The address of the stream on which torch's own operators would run now."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0
