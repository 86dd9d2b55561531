"""Counts of n-grams against the standard's evaluator, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daceopt import ops
from daceopt.ir.interpreter.interpret import interpret
from tests.ops.compiled import compiled
from tests.ops.single import lowered, reference, single

RNG = np.random.default_rng(2)
POOL: dict[str, Any] = {
    "ngram_counts": [0, 4, 12],
    "ngram_indexes": [3, 0, 1, 2, 8, 4, 5, 6, 7, 9],
    "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7, -1, 2, 2, 2, 2, 3, 5, 3],
}
X = RNG.integers(-1, 9, (5, 30))


def options(mode: str, shortest: int, longest: int, skips: int, weighted: bool) -> dict[str, Any]:
    limits = {"min_gram_length": shortest, "max_gram_length": longest, "max_skip_count": skips}
    return POOL | limits | {"mode": mode} | ({"weights": [0.5 * k + 1 for k in range(10)]} if weighted else {})


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("limits", [(1, 1, 0), (1, 2, 3), (2, 2, 0), (2, 3, 5), (1, 3, 40)], ids=str)
def test_counts(limits: tuple[int, int, int], mode: str, weighted: bool) -> None:
    attributes = options(mode, *limits, weighted)
    ones = {} if weighted else {"weights": [1.0] * 10}  # the evaluator cannot do without
    for x in (X, X[0].astype(np.int32)):
        wanted = reference("TfIdfVectorizer", [x], 1, 23, **attributes | ones)[0]
        graph, feeds = single("TfIdfVectorizer", [x], like=[wanted], **attributes)
        np.testing.assert_array_equal(interpret(lowered(graph), feeds)[graph.outputs[0]], wanted)


@pytest.mark.parametrize("x", [X, X[1].astype(np.int32), X[:, :1], X[:, :0]], ids=["rows", "row", "short", "empty"])
def test_compiled(x: np.ndarray) -> None:
    attributes = options("TFIDF", 1, 3, 4, True)
    wanted = reference("TfIdfVectorizer", [x], 1, 23, **attributes)[0]
    np.testing.assert_array_equal(compiled("TfIdfVectorizer", [x], **attributes)[0], wanted)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weights": [1.0]}, "1 weights; expected 10, one for each column"),
        ({"ngram_indexes": [9]}, "1 ngram_indexes for 10 n-grams"),
        ({"ngram_counts": [0, 9, 4]}, "expected ascending positions"),
        ({"min_gram_length": 0}, "min_gram_length below 1"),
    ],
)
def test_refusals_say_why(change: dict[str, Any], reason: str) -> None:
    graph, _ = single(
        "TfIdfVectorizer", [X], like=[np.zeros((5, 10), np.float32)], **options("TF", 1, 2, 0, False) | change
    )
    assert reason in str(ops.why_unsupported(graph, graph.operators()[0]))
