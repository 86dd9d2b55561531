"""The text that stands for a user's code in cache keys: what it computes with decides it, and nothing else."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sympy
import torch

from daceopt.ops.core import registry as operators
from daceopt.passes import loading, transform
from daceopt.passes.recipe import Recipe
from daceopt.programs import compiled
from daceopt.store import identity

HELPER = "SCALE = 2\ndef helper(x, power=SCALE):\n    return x ** power\n"
RULES = """
import dace
import math
import numpy as np
import settings
from settings import helper

LIMIT = 3.0
TABLE = {"a": [1, 2], "b": (np.float32(1), dace.float32)}

class Options:
    width = 4
    def wide(self):
        return self.width * LIMIT

def plain(x):
    return x + LIMIT

def default(x, shift=1, *, factor=2):
    return x * factor + shift

def nested(x):
    return [(lambda v: v * LIMIT)(y) for y in x]

def indirect(x):
    return helper(x)

def member(x):
    return x * settings.SCALE + math.pi

def table(x):
    return TABLE[x]

def instance(x):
    return Options().wide() + x

def close(value):
    def rule(x):
        return x * value
    return rule

def itself(x):
    return itself(x - 1) if x else LIMIT
"""
NAMES = ("plain", "default", "nested", "indirect", "member", "table", "instance", "itself")


def module(name: str, text: str, folder: Path) -> ModuleType:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(text)
    made = ModuleType(name)
    made.__file__ = str(path)
    sys.modules[name] = made
    exec(compile(text, str(path), "exec"), vars(made))
    return made


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    settings = module("settings", HELPER, tmp_path / "rules")
    return module("users_rules", RULES, tmp_path / "rules"), settings


def test_equal_code_has_one_text(rules: Any) -> None:
    found, _ = rules
    for name in NAMES:
        text = identity.text_of(getattr(found, name))
        assert text == identity.text_of(getattr(found, name))
        assert "process" not in text, "all of it is stable"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plain", lambda m, s: setattr(m, "LIMIT", 3.5)),
        ("plain", lambda m, s: setattr(m, "LIMIT", 3)),
        ("default", lambda m, s: setattr(m.default, "__defaults__", (2,))),
        ("default", lambda m, s: setattr(m.default, "__kwdefaults__", {"factor": 3})),
        ("nested", lambda m, s: setattr(m, "LIMIT", -3.0)),
        ("indirect", lambda m, s: setattr(s.helper, "__defaults__", (5,))),
        ("member", lambda m, s: setattr(s, "SCALE", 7)),
        ("table", lambda m, s: m.TABLE["a"].append(3)),
        ("table", lambda m, s: m.TABLE.update(b=(np.float32(2), None))),
        ("instance", lambda m, s: setattr(m.Options, "width", 5)),
        ("instance", lambda m, s: setattr(m, "LIMIT", 4.0)),
        ("itself", lambda m, s: setattr(m, "LIMIT", 4.0)),
    ],
)
def test_what_it_reads_changes_the_text(rules: Any, name: str, change: Any) -> None:
    found, settings = rules
    before = identity.text_of(getattr(found, name))
    change(found, settings)
    assert identity.text_of(getattr(found, name)) != before


def test_closures_partials_and_methods(rules: Any) -> None:
    found, _ = rules
    variants = [
        found.close(1),
        found.close(2),
        found.close(1.0),
        found.close("1"),
        found.close(found.plain),
        found.close(sympy.sin),
        found.close(sympy.cos),
        found.close(np.arange(3)),
        found.close(np.arange(2000)),
        found.close(np.where(np.arange(2000) == 1000, 0, np.arange(2000))),
        functools.partial(found.default, shift=3),
        functools.partial(found.default, shift=4),
        found.Options().wide,
    ]
    assert len({identity.text_of(v) for v in variants}) == len(variants)
    assert identity.text_of(found.close(1)) == identity.text_of(found.close(1))


def test_the_file_is_part_of_it(rules: Any, tmp_path: Path) -> None:
    before = identity.text_of(rules[0].plain)
    changed = module("users_rules", RULES.replace("x + LIMIT", "x - LIMIT"), tmp_path / "other")
    assert identity.text_of(changed.plain) != before


def test_what_nothing_describes_never_comes_again(rules: Any) -> None:
    for value in (object(), torch.ones(2), rules[0].Options()):
        rule = rules[0].close(value)
        assert identity.text_of(rule) != identity.text_of(rule)
    scope: dict[str, Any] = {"__name__": "nowhere"}
    exec("def rule(x):\n    return x", scope)
    assert identity.text_of(scope["rule"]) != identity.text_of(scope["rule"])


def test_the_text_is_the_same_in_every_process(rules: Any) -> None:
    folder = Path(str(rules[0].__file__)).parent
    code = f"""
import hashlib, sys
sys.path.insert(0, {str(folder)!r})
import users_rules
from daceopt.store import identity
rules = [getattr(users_rules, n) for n in {NAMES!r}] + [users_rules.close(sum), users_rules.close(frozenset("abcdef"))]
print(hashlib.sha256("".join(map(identity.text_of, rules)).encode()).hexdigest())
"""
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert len(runs) == 1


# -------------------------------------------------------------------- rules of operators, recipes


@pytest.fixture
def table() -> Any:
    tables: tuple[dict[Any, Any], ...] = (
        operators._LOWERINGS,
        operators._TYPES,
        operators._CHECKS,
        operators._GRADIENTS,
    )
    before = [dict(t) for t in tables]
    yield operators
    for content, old in zip(tables, before):
        content.clear()
        content.update(old)


def test_own_rules_leave_no_text(table: Any) -> None:
    import daceopt.libs
    import daceopt.modules.module
    import daceopt.pipeline

    assert table.foreign_source() == ""
    table.lowering("aten.some.call", domain="aten")(
        daceopt.pipeline.compile_in_bundle
    )  # as a front end does, call by call
    assert table.foreign_source() == ""


def test_chosen_libraries_and_gradients_of_nodes_are_told_apart(
    table: Any, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daceopt import libs
    from daceopt.autodiff import rules as adjoints
    from daceopt.codegen import target, toolchain

    def foreign() -> str:
        return "\n".join(filter(None, compiled._foreign_rules()))

    texts = [foreign()]
    with libs.prefer(Contraction="native"):
        texts.append(foreign())
    with monkeypatch.context() as patch:
        patch.setitem(libs.PREFERENCE, "Contraction", ("native", "mkl"))
        texts.append(foreign())
    with monkeypatch.context() as patch:
        patch.setitem(adjoints._RULES, rules[0].Options, rules[0].plain)
        texts.append(foreign())
        patch.setattr(rules[0], "LIMIT", 9.0)
        texts.append(foreign())
    with monkeypatch.context() as patch:
        patch.setitem(toolchain._TOOLCHAINS, "cpu", replace(toolchain.get("cpu"), command=rules[0].close(("c++",))))
        texts.append(foreign())
    with monkeypatch.context() as patch:
        patch.setitem(target._TARGETS, "cpu", replace(target.get("cpu"), print_kernel=rules[0].plain))
        texts.append(foreign())
    assert len(set(texts)) == 7
    assert foreign() == texts[0] == ""


def test_rules_of_users_are_told_apart(table: Any, rules: Any) -> None:
    found, texts = rules[0], []

    def note() -> None:
        texts.append(table.foreign_source())

    for scale in (1, 2):
        table.elementwise("Twice", found.close(scale), domain="mine")
        note()
    table.elementwise("Twice", found.close(2), types=table.NUMBERS, domain="mine")
    note()
    for fn in (sympy.sin, sympy.cos):
        table.elementwise("Softsign", fn)
        note()
    table.lowering("Thrice", domain="mine")(found.default)
    note()
    found.default.__defaults__ = (9,)
    note()
    table.gradient("Thrice", domain="mine")(found.plain)
    note()
    found.LIMIT = 8.0
    note()
    assert len(set(texts)) == len(texts)
    assert table.foreign_source() == texts[-1]


STEP = """
from dataclasses import dataclass
from typing import ClassVar
from daceopt.passes.transform import Transformation

FACTOR = 2

@dataclass(frozen=True)
class OwnStep(Transformation):
    level: ClassVar[str] = "local"
    size: int = 3

    def match(self, graph):
        return iter(range(0 * FACTOR))
"""


def test_a_transformation_stands_for_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform.transformations, "_loaded", {})
    path = tmp_path / "steps.py"
    path.write_text(STEP)
    assert loading.load_file(path) == ["own-step"]
    cls = transform.transformations.get("own-step")
    own = sys.modules[cls.__module__]
    plain = Recipe("r", ("own-step",)).fingerprint()
    assert Recipe("r", ("own-step",)).fingerprint() == plain
    assert Recipe("r", ("own-step{size=4}",)).fingerprint() != plain
    monkeypatch.setattr(own, "FACTOR", 3)
    assert Recipe("r", ("own-step",)).fingerprint() != plain
    monkeypatch.setattr(own, "FACTOR", 2)
    assert Recipe("r", ("own-step",)).fingerprint() == plain
    monkeypatch.setattr(cls, "extra", 1, raising=False)
    assert Recipe("r", ("own-step",)).fingerprint() != plain
