"""On which device the tensors of a call are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from daceopt.errors import Unsupported

DEVICES = ("cpu", "cuda")
"""The kinds of devices that programs are compiled for, in PyTorch's words."""


def common_device(tensors: Mapping[str, torch.Tensor]) -> torch.device | None:
    """The device of tensors, by their names; None where there are none.

    Numbers of the host (tensors without dimensions) may be among those of another device, as in PyTorch. Raises
    Unsupported for several devices, and for one of a kind that no program is compiled for.
    """
    strange = next((n for n, t in tensors.items() if t.device.type not in DEVICES), None)
    if strange is not None:
        device = tensors[strange].device
        raise Unsupported(f"{strange} is on device {device}; compiled programs run on {' and '.join(DEVICES)}")
    arrays = {n: t for n, t in tensors.items() if t.ndim or t.device.type != "cpu"} or tensors
    devices = {t.device: n for n, t in reversed(list(arrays.items()))}
    if len(devices) > 1:
        listed = ", ".join(f"{n} is on {d}" for d, n in reversed(list(devices.items())))
        raise Unsupported(f"arguments on several devices: {listed}; move the module and its inputs to one, by .to()")
    return next(iter(devices), None)


def device_of(values: Iterable[object]) -> torch.device:
    """Where a call runs: on the device of its tensors, among which numbers of the host may be. Unchecked."""
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
