"""What stands for functions of one name and file, and for objects whose text does not say what they hold."""

from __future__ import annotations

import collections
import enum
import functools
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from daceopt.store.identity import is_own, text_of
from daceopt.store.own_text import home

SCALE = 1.0
Point = collections.namedtuple("Point", "x y")


def close(value: Any) -> Callable[[Any], Any]:
    def rule(x: Any) -> Any:
        return x * value

    return rule


def branch(first: bool) -> Callable[[Any], Any]:
    if first:

        def rule(x: Any) -> Any:
            return x * 2
    else:

        def rule(x: Any) -> Any:
            return x * 3

    return rule


def generated(factor: int) -> Any:
    scope: dict[str, Any] = globals()
    exec(f"def made(x):\n    return x * {factor}", scope)
    return scope.pop("made")


def attributed(scale: float) -> Any:
    def rule(x: Any) -> Any:
        return x * rule.scale  # type: ignore[attr-defined]

    rule.scale = scale  # type: ignore[attr-defined]
    return rule


@dataclass
class Described:
    value: Any

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.value


def with_descriptor(value: Any) -> type:
    class Op:
        factor = Described(close(value))

    return Op


def with_partial_method(value: Any) -> type:
    class Op:
        def scaled(self, factor: float) -> float:
            return factor

        fixed = functools.partialmethod(scaled, value)

    return Op


def member(value: float) -> Any:
    return close(enum.Enum("Kind", {"A": value}, module=__name__).A)  # type: ignore[attr-defined]


def derived(value: float) -> Any:
    class Numbers(list):  # type: ignore[type-arg]
        factor = value

    return close(Numbers([1]))


@dataclass
class Config:
    width: int = 1


def configured(value: float) -> Any:
    config = Config()
    config.scale = value  # type: ignore[attr-defined]
    return close(config)


def objects(value: Any) -> Any:
    array = np.empty(1, object)
    array[0] = [value]
    return close(array)


def masked(k: int) -> Any:
    return close(np.ma.array(np.arange(5000.0), mask=np.arange(5000) == k))


ONE_LINE = [lambda x: x * 2, lambda x: x * 3]
PAIRS: dict[str, Callable[[float], Any]] = {
    "functions in one line": lambda v: ONE_LINE[int(v) - 1],
    "functions of one name": lambda v: branch(v == 1),
    "generated code": lambda v: generated(int(v)),
    "attributes of functions": attributed,
    "descriptors": with_descriptor,
    "partial methods": with_partial_method,
    "members of enumerations": member,
    "classes of lists": derived,
    "attributes beside fields": configured,
    "arrays of objects": objects,
    "masks": lambda v: masked(int(v) + 2000),
    "layouts of arrays": lambda v: close(np.ones((2, 2), order="C" if v == 1 else "F")),
    "default factories": lambda v: close(collections.defaultdict(close(v))),
    "numbers in a namespace": lambda v: close(types.SimpleNamespace(a=np.float64(0.1) if v == 1 else 0.1)),
    "long patterns": lambda v: close(re.compile("a" * 300 + str(v))),
    "queues": lambda v: close(collections.deque([np.arange(3000) == v * 1000])),
    "cached functions": lambda v: functools.lru_cache(close(v)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_is_told_apart_and_what_is_equal_is_not(name: str) -> None:
    make = PAIRS[name]
    assert text_of(make(1.0)) == text_of(make(1.0)) != text_of(make(2.0))


def test_large_data_of_packages_never_comes_again() -> None:
    for value in (
        torch.nn.Linear(2, 2),
        types.SimpleNamespace(scale=torch.tensor(0.1)),
        torch.distributions.Normal(torch.zeros(2), torch.ones(2)),
        collections.deque([torch.ones(1)]),
    ):
        assert text_of(close(value)) != text_of(close(value)), type(value)


def test_a_function_is_of_the_module_that_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(functional.gelu)
    def mine(x: Any) -> Any:
        return x * SCALE

    @functools.wraps(is_own)
    def rule(x: Any) -> Any:
        return x

    assert mine.__module__ != __name__ == home(mine) and not is_own(home(rule))
    before = text_of(mine)
    assert text_of(mine) == before
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert text_of(mine) != before


def test_named_tuples_and_modes_of_autograd_are_stable() -> None:
    @torch.no_grad()
    def rule(x: Any) -> Any:
        return Point(x, x)

    assert text_of(rule) == text_of(rule)


def test_a_function_that_calls_itself_ends() -> None:
    def rule(x: int) -> int:
        return rule(x - 1) if x else 0

    assert text_of(rule) == text_of(rule)


# -------------------------------------------------------------------- modules


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    made, inner = types.ModuleType("users_package"), types.ModuleType("users_package.settings")
    made.settings, inner.SCALE, inner.parent = inner, 1.0, made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_package", made)
    monkeypatch.setitem(globals(), "users_package", made)
    return made


def test_settings_of_modules_inside_of_modules_count(package: Any) -> None:
    def nested(x: Any) -> Any:
        return x * users_package.settings.SCALE  # type: ignore[name-defined]  # noqa: F821

    def by_text(x: Any) -> Any:
        return x * getattr(package.settings, "SCALE")  # noqa: B009

    before = text_of(nested), text_of(by_text)
    assert before == (text_of(nested), text_of(by_text))
    package.settings.SCALE = 2.0
    assert text_of(nested) != before[0] and text_of(by_text) != before[1]


def test_what_users_put_into_packages_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(x: Any) -> Any:
        return torch.nn.functional.softsign(x)

    texts = [text_of(rule)]
    for factor in (2.0, 3.0):
        monkeypatch.setattr(functional, "softsign", close(factor))
        texts.append(text_of(rule))
    assert len(set(texts)) == 3 and texts[-1] == text_of(rule)
