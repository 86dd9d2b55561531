"""Counting n-grams of tokens: TfIdfVectorizer over integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import dace
import numpy as np
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import dim
from daceopt.ops.core import algorithm
from daceopt.ops.core.registry import Names, Operator, lowering, supports

_WEIGHTED = ("IDF", "TFIDF")


def _pool(node: Operator) -> list[tuple[tuple[int, ...], int]]:
    """(n-gram, column) of the wanted sizes, sorted by size and tokens; of equal n-grams the last counts."""
    items: list[int] = node.attribute("pool_int64s", [])
    bounds = [*node.attribute("ngram_counts"), len(items)]
    columns = iter(node.attribute("ngram_indexes"))
    column_of: dict[tuple[int, ...], int] = {}
    for size, (begin, end) in enumerate(pairwise(bounds), 1):
        for at in range(begin, end - size + 1, size):
            column = next(columns)
            if node.attribute("min_gram_length") <= size <= node.attribute("max_gram_length"):
                column_of[tuple(items[at : at + size])] = column
    return sorted(column_of.items(), key=lambda entry: (len(entry[0]), entry[0]))


@lowering("TfIdfVectorizer", types=(dace.int32, dace.int64))
def count_ngrams(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    """How often each n-gram occurs in a row (TF), whether it does (IDF), or the former, weighted (TFIDF)."""
    x, out = require(inputs, 0), require(outputs, 0)
    mode, weights = node.attribute("mode"), node.attribute("weights")
    weighted = mode in _WEIGHTED and bool(weights)
    pool, shape, width = _pool(node), b.graph.shape(x), b.graph.shape(out)[-1]
    widest = max((len(ngram) for ngram, _ in pool), default=1)
    lines = np.zeros((max(len(pool), 1), widest), np.int64)
    for line, (ngram, _) in zip(lines, pool):
        line[: len(ngram)] = ngram
    sizes = Counter(len(ngram) for ngram, _ in pool)
    starts = np.cumsum([0, *(sizes[k + 1] for k in range(widest))])
    columns = np.array([column for _, column in pool] or [0], np.int64)
    tables = [b.constant(t) for t in (lines, starts, columns)]
    limits = [node.attribute(k) for k in ("min_gram_length", "max_gram_length", "max_skip_count")]
    rows, tokens = (1, *shape)[-2:] if shape else (1, 1)
    plain = mode == "TF" or (mode == "TFIDF" and not weighted)
    counts = out if plain else b.graph.add_array("counts", b.graph.shape(out), dace.float32)
    algorithm.call(b, "ngrams", [x, *tables], [counts], [dim(rows), dim(tokens), width, widest, *limits])
    if plain:
        return
    weights_of = [b.constant(np.asarray(weights, np.float32))] if weighted else []

    def value(count: sympy.Expr, weight: sympy.Expr | int = 1) -> sympy.Expr:
        return scalar.select(scalar.gt(count, 0), weight, 0) if mode == "IDF" else count * weight

    b.elementwise(value, counts, *weights_of, out=out, label="tfidf")


@supports("TfIdfVectorizer")
def why_not_count(graph: Graph, node: Operator) -> str | None:
    width = max(node.attribute("ngram_indexes"), default=-1) + 1
    shape = graph.shape(graph.operand(node, 0))
    if len(shape) > 2 or graph.shape(graph.result(node, 0)) != (*shape[:-1], width):
        return f"an input of shape {shape}; expected [tokens] or [rows, tokens], and {width} columns of results"
    if node.attribute("pool_strings"):
        return "a pool of strings; expected integers"
    if min(node.attribute("ngram_indexes")) < 0 or node.attribute("min_gram_length") < 1:
        return "negative ngram_indexes or a min_gram_length below 1"
    weights = node.attribute("weights")
    if weights and len(weights) != width:
        return f"{len(weights)} weights; expected {width}, one for each column"
    return _why_not_pool(node)


def _why_not_pool(node: Operator) -> str | None:
    bounds = [*node.attribute("ngram_counts"), len(node.attribute("pool_int64s", []))]
    if bounds != sorted(bounds) or bounds[0] < 0:
        return f"ngram_counts {bounds[:-1]} of a pool of {bounds[-1]}; expected ascending positions in it"
    count = sum((end - begin) // size for size, (begin, end) in enumerate(pairwise(bounds), 1))
    columns = len(node.attribute("ngram_indexes"))
    return None if count <= columns else f"{columns} ngram_indexes for {count} n-grams"


@algorithm.reference("ngrams")
def _reference(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], parameters: Sequence[int]) -> None:
    rows, tokens, width, widest, shortest, longest, skips = parameters
    x, lines, starts, columns = inputs
    y = outputs[0].reshape(rows, width)
    y[...] = 0
    for size in range(shortest, min(longest, widest) + 1):
        column_of = {tuple(lines[k, :size]): columns[k] for k in range(starts[size - 1], starts[size])}
        for row, step in np.ndindex(rows, 1 if size == 1 else skips + 1):
            span = x.reshape(rows, tokens)[row]
            for at in range(tokens - (size - 1) * (step + 1)):
                column = column_of.get(tuple(span[at : at + (size - 1) * (step + 1) + 1 : step + 1]))
                if column is not None:
                    y[row, column] += 1
