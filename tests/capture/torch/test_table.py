"""Rules of ATen operators that users register decide what is compiled, so the keys of the cache have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from daceopt.capture.torch import table
from daceopt.capture.torch.elements import pointwise
from daceopt.programs import compiled


@pytest.fixture
def rules() -> Iterator[None]:
    table._load()
    tables = table._RULES, table._COMPLEX
    before = tuple(map(dict, tables))
    for content in tables:  # what the documents register, whose code the tests run
        for target in [t for t in content if t.name().startswith("aten::special_i1e")]:
            del content[target]
    yield
    for content, old in zip(tables, before):
        content.clear()
        content.update(old)


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda x: x * factor


def test_own_rules_leave_no_text(rules: None) -> None:
    assert table.entry_of(torch.ops.aten.sin.default) is not None and table.foreign_source() == ""


def test_rules_of_users_are_told_apart(rules: None) -> None:
    texts = [compiled._foreign_rules()]
    for make in (lambda f: pointwise("special_i1e")(f), lambda f: table.translates("special_i1e")(f)):
        for factor in (2.0, 3.0):
            make(scaled(factor))
            texts.append(compiled._foreign_rules())
            assert texts[-1] == compiled._foreign_rules()
    table.translates("special_i1e", derivative="aten")(scaled(3.0))
    texts.append(compiled._foreign_rules())
    assert len(set(map(tuple, texts))) == len(texts)
