"""The entries of PyTorch's databases, and their samples: calls with which each is tried."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from tests.onnx_suite.cases import share_of

DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
}
VARIANTS = ("plain", "strided")
MODULES = "module."


@dataclass(frozen=True)
class Call:
    """One call: ``fn(*args, **kwargs)``, made anew each time; ``process`` prepares results for differentiation, as the
    database says."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    process: Callable[[Any], Any] = lambda results: results


class OperatorEntry:
    """An operator of ``op_db``."""

    def __init__(self, info: Any) -> None:
        self.info = info
        self.name: str = info.full_name
        self.has_gradient: bool = info.supports_autograd
        self.has_second_gradient: bool = info.supports_autograd and info.supports_gradgrad

    def takes(self, dtype: torch.dtype) -> bool:
        return dtype in self.info.supported_dtypes("cpu")

    def differentiates(self, dtype: torch.dtype) -> bool:
        return self.has_gradient and dtype in self.info.supported_backward_dtypes("cpu")

    def samples(self, dtype: torch.dtype) -> list[Any]:
        gradient = dtype.is_floating_point and self.differentiates(dtype)
        return list(self.info.sample_inputs("cpu", dtype, requires_grad=gradient))

    def call(self, sample: Any, dtype: torch.dtype, variant: str) -> Call:
        chosen = sample.noncontiguous() if variant == "strided" else sample
        fn = self.info.get_op()
        return Call(fn, (chosen.input, *chosen.args), chosen.kwargs, sample.output_process_fn_grad)


class ModuleEntry:
    """A module of ``module_db``, training or not."""

    def __init__(self, info: Any, training: bool) -> None:
        self.info, self.training = info, training
        self.name = f"{MODULES}{info.name.removeprefix('nn.')}{'' if training else '.eval'}"
        self.has_gradient = True
        self.has_second_gradient = bool(info.supports_gradgrad)

    def takes(self, dtype: torch.dtype) -> bool:
        return dtype in self.info.dtypes and dtype.is_floating_point

    def differentiates(self, dtype: torch.dtype) -> bool:
        return dtype.is_floating_point

    def samples(self, dtype: torch.dtype) -> list[Any]:
        made = self.info.module_inputs_func(
            self.info, device="cpu", dtype=dtype, requires_grad=True, training=self.training
        )
        return [s for s in made if s.forward_input is not None]

    def call(self, sample: Any, dtype: torch.dtype, variant: str) -> Call:
        inputs, given = sample.constructor_input, sample.forward_input
        module = self.info.module_cls(*inputs.args, **inputs.kwargs).to(dtype)
        module.train(self.training)
        return Call(_call_module, (module, *given.args), given.kwargs)


def _call_module(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


Entry = OperatorEntry | ModuleEntry


@cache
def entries() -> dict[str, Entry]:
    """All entries by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations
        from torch.testing._internal.common_modules import module_db

    op_db = common_methods_invocations.op_db
    # Dynamo does not trace the seeding around some functions; ours stands around the whole call
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    found: list[Entry] = [OperatorEntry(info) for info in op_db]
    for info in module_db:
        modes = (True, False) if info.train_and_eval_differ else (True,)
        found += [ModuleEntry(info, training) for training in modes]
    return {entry.name: entry for entry in found}


@dataclass(frozen=True)
class Case:
    """A sample of an entry: its position among those of a type, as it is or with strides."""

    entry: str
    dtype: str
    index: int
    variant: str = "plain"

    @classmethod
    def parse(cls, name: str) -> Case:
        """The case of a name that ``str`` gave."""
        entry, dtype, index, variant = name.split("/")
        return cls(entry, dtype, int(index), variant)

    def __str__(self) -> str:
        return f"{self.entry}/{self.dtype}/{self.index}/{self.variant}"

    def call(self) -> Call:
        """Its call; the values are the same each time."""
        sample = samples(self.entry, self.dtype)[self.index]
        torch.manual_seed(share_of(str(self), 2**31))
        return entries()[self.entry].call(sample, DTYPES[self.dtype], self.variant)


@lru_cache(maxsize=4)
def samples(entry: str, dtype: str) -> list[Any]:
    """All samples of an entry in a type, the same each time."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entries()[entry].samples(DTYPES[dtype])


def cases(entry: str, dtype: str, limit: int | None = None) -> Iterator[Case]:
    """Those of an entry in a type: at most ``limit`` samples, spread evenly; every third also with strides."""
    if not entries()[entry].takes(DTYPES[dtype]):
        return
    count = len(samples(entry, dtype))
    step = 1 if limit is None else max(1.0, count / limit)
    chosen = sorted({int(k * step) for k in range(min(count, limit or count))})
    for position, index in enumerate(chosen):
        yield Case(entry, dtype, index)
        if position % 3 == 0 and not entry.startswith(MODULES):
            yield Case(entry, dtype, index, "strided")
