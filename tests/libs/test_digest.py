"""The digest by which weights are told from others: every change that training or a user makes gives another one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from daceopt.codegen.compiler import CompileJob, Flags, compile_objects, link
from daceopt.libs.base import INCLUDE

_SOURCE = """
#include "daceopt/digest.h"
extern "C" __attribute__((visibility("default"))) void run(const void* data, int64_t bytes, uint64_t* out) {
    const auto found = daceopt::digest(data, bytes);
    out[0] = found.low;
    out[1] = found.high;
}
"""
Digest = Callable[[np.ndarray], tuple[int, int]]


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> Digest:
    target: Path = tmp_path_factory.mktemp("digest") / "digest.so"
    link(compile_objects([CompileJob(_SOURCE, "kernel", Flags(includes=(str(INCLUDE),)))]), target, Flags())
    function = ctypes.CDLL(str(target)).run

    def of(array: np.ndarray) -> tuple[int, int]:
        out = (ctypes.c_uint64 * 2)()
        function(array.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(array.nbytes), out)
        return out[0], out[1]

    return of


def test_equal_contents_anywhere_have_one_digest(digest: Digest) -> None:
    weights = np.random.default_rng(0).standard_normal(300_001).astype(np.float32)
    elsewhere = np.zeros(300_005, np.float32)[3:-1]
    elsewhere[:] = weights
    assert digest(weights) == digest(elsewhere)


def test_changes_that_are_alike_have_digests_of_their_own(digest: Digest) -> None:
    """Signs, exchanged elements and small steps at any two places, of which some share a lane."""
    weights = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    found = {digest(weights)}
    places = [0, 1, 2, 63, 64, 65, 127, 128, 511, 512, 1022, 1023]
    changed = 0
    for k, j in combinations(places, 2):
        for change in (
            lambda w, k, j: -w[[k, j]],
            lambda w, k, j: w[[j, k]],
            lambda w, k, j: np.nextafter(w[[k, j]], 9),
        ):
            other = weights.copy()
            other[[k, j]] = change(other, k, j)
            found.add(digest(other))
            changed += 1
    assert len(found) == 1 + changed


def test_each_bit_counts(digest: Digest) -> None:
    data = np.zeros(70_000, np.uint8)
    found = {digest(data)}
    for at in (0, 7, 255, 256, 65_535, 65_536, 69_999):
        for bit in range(8):
            other = data.copy()
            other[at] = 1 << bit
            found.add(digest(other))
    assert len(found) == 1 + 7 * 8


def test_lengths_of_zeros_differ(digest: Digest) -> None:
    assert len({digest(np.zeros(n, np.uint8)) for n in range(600)}) == 600
