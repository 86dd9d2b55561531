"""The part of the database that pytest runs, compiled: one sample of a twelfth of the pairs of entry and type."""

from __future__ import annotations

import re
from functools import cache

from tests.onnx_suite.runner import Worker
from tests.opinfo import states
from tests.opinfo.exclusions import surprises

SHARES = 12
PARTS = 10  # a batch each, about
DTYPES = ("float32", "float64", "bfloat16", "int64")


def check(worker: Worker, part: int) -> None:
    """Every case is as in eager PyTorch, or fails as ``excluded.txt`` says."""
    wrong = surprises(worker.run_all(names()[part::PARTS], "build"))
    assert not wrong, "\n".join([f"{len(wrong)} results differ from excluded.txt:", *(w[:400] for w in wrong)])


@cache
def names() -> list[str]:
    """A sample, also with strides, for each pair of the first share."""
    return states.chosen(re.compile(""), DTYPES, 1, (0, SHARES))
