"""What PyTorch keeps of CUDA devices and of memory: streams, allocators, switches of its libraries.

A build of PyTorch for the CPU lacks some of it: that is looked up where a device is used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from daceopt.torch_internals.release import private_names

_SWITCHES = (
    "_get_blas_preferred_backend",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_enabled",
    "_get_cudnn_sdp_enabled",
    "_get_deterministic_algorithms",
    "_get_flash_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_math_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_sm_carveout_experimental",
)

with private_names():
    # How many tensors share the storage of this address
    storage_use_count = torch._C._storage_Use_Count

    # Uninitialised tensors of a shape, strides and an element type, without PyTorch's dispatcher
    empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
    empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda

    # In what a backend ("cuda") computes an operation ("matmul", "conv", "rnn") of float32: "ieee", "tf32", "none"
    precision, set_precision = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter

    # Whether products of float32 may be rounded, by the older switch: "highest", "high", "medium"
    matmul_precision = torch._C._get_float32_matmul_precision

    # Keep a device busy for a number of its cycles
    spin = torch.cuda._sleep

    _attention_order = torch._C._get_sdp_priority_order
    _end_allocation = torch._C._cuda_endAllocateToPool
    _states: list[Callable[[], Any]] = [getattr(torch._C, name) for name in _SWITCHES]
    _states += [partial(precision, "cuda", kind) for kind in ("matmul", "conv")]


def library_modes() -> tuple[Any, ...]:
    """The user's switches that decide which kernels torch's operators start."""
    return (*[state() for state in _states], *_attention_order())


def current_device_getter() -> Callable[[], int]:
    """What gives the index of the current CUDA device."""
    return getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def current_stream_getter(device: torch.device) -> Callable[[], int]:
    """What gives the address of the stream on which torch's own operators would run on a CUDA device."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return partial(raw, device.index)
    return lambda: int(torch.cuda.current_stream(device).cuda_stream)


def clear_product_workspaces() -> None:
    """Give back the memory that products keep for each stream."""
    with private_names():
        torch._C._cuda_clearCublasWorkspaces()


def end_allocation(device: int, pool: object) -> None:
    """Let a device's allocator take memory from ``pool`` no longer, where it does."""
    with suppress(RuntimeError):
        _end_allocation(device, pool)
