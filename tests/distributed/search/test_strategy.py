"""Strategies as files: read back as they were, refused with the difference where they are for something else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from daceopt.distributed.search.strategy import Bucket, Identity, OperatorGroup, Strategy, Weight
from daceopt.errors import StrategyError

BEFORE_SHARDS = (
    '{"format": "daceopt strategy 1", "digest": "cd3a0c71270d082820d6d3e24d30a8280d456f5b98e32179c3c64627'
    '41ee5b39", "identity": {"weights": [{"name": "a.weight", "dtype": "float32", "shape": [4, 3]}, {"nam'
    'e": "a.bias", "dtype": "float32", "shape": [4]}, {"name": "h", "dtype": "float16", "shape": []}], "w'
    'orld": 2, "graph": "", "versions": [["daceopt", "1"], ["torch", "2"]]}, "buckets": [{"parameters": ['
    '"h"]}, {"parameters": ["a.bias", "a.weight"]}], "groups": [{"nodes": ["x_1", "y_2"], "duplicated": ['
    '"x_1"]}, {"nodes": ["x_1"], "duplicated": []}], "wait": "end"}'
)
"""What the format without shards wrote of ``strategy()``, but for the merges of its groups."""
BEFORE_MERGES = (
    '{"format": "daceopt strategy 2", "digest": "fd4dc836ee2d73866be56e5a5bb566e3f8042ac2d81c61e0e428325e'
    '777ff288", "identity": {"weights": [{"name": "a.weight", "dtype": "float32", "shape": [4, 3]}, {"nam'
    'e": "a.bias", "dtype": "float32", "shape": [4]}, {"name": "h", "dtype": "float16", "shape": []}], "w'
    'orld": 2, "graph": "", "versions": [["daceopt", "1"], ["torch", "2"]]}, "buckets": [{"parameters": ['
    '"h"], "sharded": false}, {"parameters": ["a.bias", "a.weight"], "sharded": false}], "groups": [{"nod'
    'es": ["x_1", "y_2"], "duplicated": ["x_1"]}, {"nodes": ["x_1"], "duplicated": []}], "wait": "end", "'
    'of_step": false}'
)
"""What the format without merges wrote of it."""


def identity(world: int = 2) -> Identity:
    weights = (Weight("a.weight", "float32", (4, 3)), Weight("a.bias", "float32", (4,)), Weight("h", "float16", ()))
    return Identity(weights, world, "", (("daceopt", "1"), ("torch", "2")))


def strategy() -> Strategy:
    buckets = (Bucket(("h",)), Bucket(("a.bias", "a.weight")))
    groups = OperatorGroup(("x_1", "y_2"), ("x_1",), ((0, 1),)), OperatorGroup(("x_1",))
    return Strategy(identity(), buckets, groups, "end")


def without_merges() -> Strategy:
    return replace(strategy(), groups=tuple(replace(g, merges=()) for g in strategy().groups))


def bucket(*names: str) -> dict[str, object]:
    return {"parameters": list(names), "sharded": False}


def test_a_strategy_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    strategy().save(path)
    assert Strategy.load(path) == strategy() == Strategy.parse(strategy().text())
    assert Strategy.load(path).digest() == strategy().digest() != replace(strategy(), wait="use").digest()
    assert [p.name for p in tmp_path.iterdir()] == ["strategy.json"]


@pytest.mark.parametrize("text", [BEFORE_SHARDS, BEFORE_MERGES])
def test_a_file_of_an_earlier_format_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(text)
    assert Strategy.load(path) == without_merges()
    path.write_text(text.replace('"end"', '"use"'))
    with pytest.raises(StrategyError, match="changed after it was written"):
        Strategy.load(path)


def test_shards_are_part_of_a_strategy() -> None:
    buckets = tuple(replace(b, sharded=True) for b in strategy().buckets)
    sharded = replace(strategy(), buckets=buckets)
    assert Strategy.parse(sharded.text()) == sharded and sharded.digest() != strategy().digest()


def test_no_part_of_a_file_is_a_strategy() -> None:
    text = strategy().text()
    for cut in range(0, len(text), 7):
        with pytest.raises(StrategyError, match="not whole JSON"):
            Strategy.parse(text[:cut])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("wait",), "use", "changed after it was written"),
        (("identity", "world"), 3, "changed after it was written"),
        (("identity", "world"), 0, "0 workers"),
        (("identity", "world"), True, "expected an integer"),
        (("identity", "world"), -1, "expected an integer"),
        (("wait",), "never", "reductions wait at 'never'"),
        (("buckets",), {}, "expected a list"),
        (("buckets",), [{"parameters": [], "sharded": False}], "bucket 0 is empty"),
        (("buckets", 0), {"parameters": ["h"], "sharded": False, "more": 1}, "bucket 0 has the keys"),
        (("buckets", 0), {"parameters": ["h"]}, "bucket 0 has the keys"),
        (("buckets", 0, "sharded"), 0, "expected true or false"),
        (("buckets", 0, "sharded"), True, "changed after it was written"),
        (("buckets", 0, "parameters"), [1], "expected text"),
        (("buckets", 0, "parameters"), ["h", "h"], "h is in several buckets"),
        (("buckets", 0, "parameters"), ["g"], "g is no parameter"),
        (("buckets",), [bucket("h"), bucket("a.bias")], "a.weight is in no bucket"),
        (("buckets",), [bucket("h", "a.bias", "a.weight")], "expected one element type"),
        (("groups", 1, "nodes"), ["y_2"], "y_2 is in several groups"),
        (("groups", 1), {"nodes": ["x_1"], "duplicated": []}, "group 1 has the keys"),
        (("groups", 0, "merges"), [[0]], "merge 0 of group 0 has 1 entries; expected two places"),
        (("groups", 0, "merges"), [[0, -1]], "expected an integer"),
        (("groups", 0, "merges"), [[1, 0]], "changed after it was written"),
        (("identity", "versions", 0), ["torch"], "expected a name and a version"),
        (("identity", "weights", 0, "shape"), [-4], "expected an integer"),
        (("format",), "daceopt strategy 4", "expected one of .'daceopt strategy 1', "),
        (("format",), "daceopt strategy 1", "strategy has the keys"),
        (("format",), "daceopt strategy 2", "group 0 has the keys"),
    ],
)
def test_an_edited_file_is_refused_with_the_place(path: tuple[str | int, ...], value: object, message: str) -> None:
    tree = json.loads(strategy().text())
    inner = tree
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(StrategyError, match=message):
        Strategy.parse(json.dumps(tree))


@pytest.mark.parametrize(
    "raw", ["[]", "null", "1", '{"a": 1, "a": 2}', '{"world": NaN}', "[" * 100_000, b"\xff\xfe\x00"]
)
def test_what_is_no_strategy_is_refused(raw: str | bytes) -> None:
    with pytest.raises(StrategyError):
        Strategy.parse(raw)


def test_the_message_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(StrategyError, match=r"s\.json: it is not whole JSON"):
        Strategy.load(tmp_path / "s.json")


def test_differences_name_what_is_different() -> None:
    weights = (Weight("a.weight", "float32", (4, 5)), Weight("a.bias", "float32", (4,)), Weight("b", "float32", (1,)))
    other = Identity(weights, 4, "", (("daceopt", "1"), ("torch", "3")))
    assert strategy().differences(other) == [
        "parameter h is missing",
        "there is a parameter b more",
        "parameter a.weight is float32[4, 5], expected float32[4, 3]",
        "4 workers, expected 2",
        "torch 3, expected 2",
    ]
    with pytest.raises(StrategyError, match="parameter h is missing; .*Search it again"):
        strategy().check(other)
    assert strategy().check(identity()) == strategy()


def test_the_identity_of_a_model_is_its_trained_parameters_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.half()
    found = Identity.of(model, 2)
    assert [w.name for w in found.weights] == ["0.weight", "1.bias", "2.weight", "2.bias"]
    assert found.weights[0] == Weight("0.weight", "float16", (3, 3))
    assert dict(found.versions)["torch"] == torch.__version__.partition("+")[0] or dict(found.versions)["torch"]
    assert not found.differences(Identity.of(model, 2))
