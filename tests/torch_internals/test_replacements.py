"""Functions of PyTorch are replaced once, in layers, and only where somebody asks for it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daceopt.torch_internals import replacements


class Owner:
    """Stands for a class of PyTorch."""

    def method(self, x: int) -> int:
        return x + 1

    @staticmethod
    def static(x: int) -> int:
        return x + 2


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Owner]]:
    module: Any = types.ModuleType("owner_of_functions")
    module.Owner = type("Owner", (), dict(vars(Owner)))
    module.value = 1
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(replacements, "_layers", set())
    entries = {f"Owner.{name}": (module.__name__, "") for name in ("method", "static", "gone")}
    monkeypatch.setattr(replacements, "REPLACED", entries)
    monkeypatch.setattr(replacements, "EXCHANGED", {"value": (module.__name__, "value")})
    yield module.Owner


def _tenfold(original: Callable[..., int], self: Any, x: int) -> int:
    return original(self, x) * 10


def _negative(original: Callable[..., int], self: Any, x: int) -> int:
    return -original(self, x)


def test_a_function_is_replaced_once(owner: type[Owner]) -> None:
    for _ in range(2):
        replacements.replace("Owner.method", _tenfold)
    assert owner().method(1) == 20 and owner.method.__name__ == "method"


def test_a_second_function_is_called_before_the_first(owner: type[Owner]) -> None:
    for function in (_tenfold, _negative, _tenfold):
        replacements.replace("Owner.method", function)
    assert owner().method(1) == -20


def test_the_original_answers_where_nobody_asks(owner: type[Owner]) -> None:
    asked = False
    replacements.replace("Owner.method", _tenfold, when=lambda: asked)
    assert owner().method(1) == 2
    asked = True
    assert owner().method(1) == 20


def test_static_methods_stay_static(owner: type[Owner]) -> None:
    replacements.replace("Owner.static", lambda original, x: original(x) * 10)
    assert owner.static(1) == 30 and owner().static(1) == 30


def test_a_function_that_is_gone(owner: type[Owner]) -> None:
    from daceopt.errors import PyTorchChanged

    with pytest.raises(PyTorchChanged, match="gone"):
        replacements.replace("Owner.gone", _tenfold)


def test_a_value_comes_back_after_its_block(owner: type[Owner]) -> None:
    module: Any = sys.modules["owner_of_functions"]
    with pytest.raises(ZeroDivisionError), replacements.exchange("value", 2):
        assert module.value == 2
        _ = 1 / 0
    assert module.value == 1
