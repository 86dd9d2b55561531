"""Programs on a device: what a call looks up, with the host in the device's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from daceopt.errors import DaceoptError
from daceopt.runtime import device_entry
from daceopt.runtime.binding import Output
from daceopt.runtime.device_entry import DeviceEntry, PlacedEntry
from daceopt.runtime.executable import ProgramSizes
from daceopt.runtime.manifest import Manifest, Tensor
from daceopt.runtime.strides import row_major
from daceopt.torch_internals import cuda_state


class _Program:
    """Keeps the addresses that it is called with."""

    def __init__(self, device: str, constants: Sequence[np.ndarray] = (), arena: int = 0):
        named = [Tensor(f"constant:{k}", "float32", 1, device) for k in range(len(constants))]
        self.manifest = Manifest(
            "p",
            (Tensor("input:0", "float32", 1, device),),
            tuple(named),
            (Tensor("output:0", "float32", 1, device),),
            has_stream=True,
        )
        self.constants, self.arena = tuple(constants), arena
        self.calls: list[list[int]] = []

    def sizes(self, symbols: tuple[int, ...]) -> ProgramSizes:
        return ProgramSizes(self.arena, 0, ((4,),))

    def run(self, pointers: Sequence[int], symbols: tuple[int, ...]) -> None:
        self.calls.append(list(pointers))


def _called(entry: Any, seed: int | None = None, saved: torch.Tensor | None = None) -> list[int]:
    memory = entry.memory(())
    outputs = memory.allocate()
    entry.invoke([8], outputs, saved, seed, (), memory.arena)
    found: list[int] = entry.executable.calls[-1]
    assert len(found) == entry.executable.manifest.pointer_count
    assert found[1 + len(entry.constants)] == outputs[0].data_ptr()
    return found


def test_what_a_program_does_not_use_is_not_allocated() -> None:
    x = torch.zeros(4)
    entry = DeviceEntry(_Program("cpu", [np.ones(2, np.float32)])).place([x])
    first, constant, _, saved, arena, seeds, stream = _called(entry)
    assert (first, constant) == (8, entry.constants[0])
    assert (saved, arena, seeds, stream) == (0, 0, 0, 0)
    block = torch.zeros(8, dtype=torch.uint8)
    entry = DeviceEntry(_Program("cpu", arena=64)).place([x])
    _, _, saved, arena, seeds, _ = _called(entry, 7, block)
    assert saved == block.data_ptr() and arena and seeds


def test_outputs_are_tensors_of_their_own() -> None:
    entry = DeviceEntry(_Program("cpu")).place([torch.zeros(4)])
    (one,), (other,) = (entry.memory(()).allocate() for _ in range(2))
    assert one.data_ptr() != other.data_ptr() and one.untyped_storage().nbytes() == 16
    assert (one.shape, one.dtype, one.device.type) == ((4,), torch.float32, "cpu")


def test_outputs_on_a_device_have_their_forms() -> None:
    program = _Program("cpu")
    program.sizes = lambda symbols: ProgramSizes(0, 0, ((3, 4),))  # type: ignore[method-assign]
    whole = DeviceEntry(program)
    whole.forms = {0: Output((1, 0), False)}
    ((one,), (other,)) = (whole.place([torch.zeros(4)]).memory(()).allocate() for _ in range(2))
    assert one.shape == (4, 3) and one.stride() == other.stride() == (1, 4) and not one._is_view()


def test_an_entry_for_each_device_is_kept() -> None:
    whole = DeviceEntry(_Program("cpu"))
    entry = whole.place([torch.zeros(4)])
    assert whole.place([torch.zeros(4), torch.zeros(())]) is entry
    assert whole.place([torch.zeros(0)]) is entry


def test_tensors_elsewhere_are_refused_however_often_a_program_has_run() -> None:
    whole = DeviceEntry(_Program("cpu"))
    for _ in range(2):
        whole.place([torch.zeros(4)])
        with pytest.raises(DaceoptError, match=r"a program for cpu are on meta; expected one cpu device"):
            whole.place([torch.zeros(4, device="meta")])
        with pytest.raises(DaceoptError, match=r"are on cpu, meta; expected one cpu device"):
            whole.place([torch.zeros(4), torch.zeros(4, device="meta")])


@pytest.mark.parametrize("shape", [(), (5,), (0,), (3, 0, 2), (2, 3, 4), (1, 1)])
def test_strides_are_those_of_a_contiguous_tensor(shape: tuple[int, ...]) -> None:
    assert row_major(shape) == torch.empty(shape).stride()


class _Cuda:
    """The functions of torch that look up devices and streams, of which there are two each."""

    def __init__(self) -> None:
        self.current, self.stream, self.entered = 0, {0: 70, 1: 71}, 0

    @contextmanager
    def device(self, device: torch.device) -> Any:
        before, self.current = self.current, device.index
        self.entered += 1
        yield
        self.current = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _Cuda:
    found = _Cuda()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: found.current, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", found.stream.__getitem__, raising=False)
    monkeypatch.setattr(torch.cuda, "device", found.device)
    host: Callable[..., Any] = device_entry._allocator
    monkeypatch.setattr(device_entry, "_allocator", lambda device, *like: host(torch.device("cpu"), *like))
    return found


def test_a_call_runs_on_the_stream_that_is_current_then(cuda: _Cuda) -> None:
    entry = PlacedEntry(_Program("cuda"), torch.device("cuda", 0))
    assert _called(entry)[-1] == 70
    cuda.stream[0] = 72
    assert _called(entry)[-1] == 72 and not cuda.entered


def test_a_call_on_another_device_than_the_current_one(cuda: _Cuda) -> None:
    program = _Program("cuda")
    entry = PlacedEntry(program, torch.device("cuda", 1))
    seen: list[int] = []
    run = program.run
    program.run = lambda *given: (seen.append(cuda.current), run(*given))[1]  # type: ignore[method-assign]
    assert _called(entry)[-1] == 71
    assert (seen, cuda.current, cuda.entered) == ([1], 0, 1)
    cuda.current = 1
    assert _called(entry)[-1] == 71 and cuda.entered == 1


def test_streams_by_the_public_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream", raising=False)
    monkeypatch.delattr(torch._C, "_cuda_getDevice", raising=False)
    stream = type("Stream", (), {"cuda_stream": 73})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    place = torch.device("cuda", 0)
    assert device_entry._current_stream(place)() == 73 and device_entry._current_device(place)() == 0


@pytest.mark.parametrize("devices", [1, 2])
def test_memory_of_the_only_device_needs_no_look_at_which(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(cuda_state, "empty_strided_cuda", lambda *of: asked.append(of))
    empty = torch.empty_strided
    monkeypatch.setattr(torch, "empty_strided", lambda *of, dtype, device: empty(*of, dtype=dtype))
    for strides in ((3, 1), (1, 2)):
        given = () if strides == (3, 1) else (strides,)
        make = device_entry._allocator(torch.device("cuda", 0), (2, 3), torch.float32, *given)
        found = make()
        assert found is None if devices == 1 else found.stride() == strides
    assert asked == ([((2, 3), (3, 1), torch.float32), ((2, 3), (1, 2), torch.float32)] if devices == 1 else [])
