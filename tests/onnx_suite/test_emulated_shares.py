"""A part of ONNX's backend suite by the recipe ``gpu``, whose kernels run in the emulation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.onnx_suite.exclusions import excluded
from tests.onnx_suite.runner import WORKER, Worker
from tests.onnx_suite.shares import EMULATED, names

# torch's attention rounds elsewhere than the reference, by two units in the last place of float16
ROUNDED = ("test_attention_4d_fp16", "test_attention_4d_causal_fp16")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker((*WORKER, "--emulated"))
    yield made
    made.close()


@pytest.mark.parametrize("share", EMULATED)
def test_what_is_built_is_right(worker: Worker, share: int) -> None:
    """Nothing is wrong; what a device does not do is refused, and that is little."""
    wanted = [name for name in names(worker, share) if name not in (*excluded(), *ROUNDED)]
    found = worker.run(wanted, "native", "gpu")
    wrong = [f"{name}: {reason[:400]}" for name, reason in found.items() if reason and "Unsupported" not in reason]
    assert not wrong, "\n".join(wrong)
    assert sum(map(bool, found.values())) <= len(found) / 8
