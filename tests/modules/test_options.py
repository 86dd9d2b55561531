"""Options are checked when they are given: wrong ones are errors with the nearest right one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from daceopt import recipes
from daceopt.modules.options import Options, check

RIGHT: list[dict[str, Any]] = [
    {},
    {"recipe": "cpu", "backward": True, "fallback": "silent", "verify": "numerics"},
    {"recipe": recipes.get("none"), "backward": False, "fallback": "raise", "verify": "structure"},
    {"dynamic": True},
    {"dynamic": False},
    {"dynamic": {"x": {0}}},
    {"dynamic": {"x": [0, 1], 2: (0,), "y": frozenset({3}), "z": None}},
    {"dynamic": {"x": {0: Ellipsis, 1: None}}},
    {"dynamic": {"x": (Ellipsis, None)}},
    {"dynamic": {"batch": {"image": {0: "n"}}, "pair": [{0: "n"}, None]}},
]

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"recipe": "atuo"},
        ValueError,
        r"recipe='atuo'; expected a daceopt.Recipe or one of 'apollo', 'auto', .*mean 'auto'\?",
    ),
    ({"recipe": "zzzzzz"}, ValueError, r"'none'[^?]*$"),
    ({"recipe": "cpu{tume='3s'}"}, ValueError, r"expected options of tune and memory_budget.*mean 'tune'\?"),
    ({"recipe": "cpu{tune=True"}, ValueError, "expected a name, or text like"),
    ({"recipe": "cpu{tune='soon'}"}, ValueError, "expected None, True, a number of seconds"),
    ({"recipe": "cpu{tune=True}", "tune": 3}, ValueError, "tune=3; expected one of both"),
    ({"recipe": 3}, TypeError, "recipe=3; expected .*, not int"),
    ({"recipe": None}, TypeError, "not NoneType"),
    ({"backward": "yes"}, TypeError, "backward='yes'; expected None, True or False, not str"),
    ({"backward": 1}, TypeError, "backward=1; expected None, True or False, not int"),
    ({"fallback": "wran"}, ValueError, r"fallback='wran'; expected one of 'warn', .*did you mean 'warn'\?"),
    ({"fallback": False}, TypeError, "fallback=False; expected one of 'warn'"),
    ({"verify": "numeric"}, ValueError, r"verify='numeric'; expected None or one of .*did you mean 'numerics'\?"),
    ({"verify": True}, TypeError, "verify=True; expected None or one of"),
    ({"dynamic": [1]}, TypeError, r"dynamic=\[1\]; expected None, True, False or a dict .*, not list"),
    ({"dynamic": 1}, TypeError, "dynamic=1; expected None, True, False or a dict"),
    ({"dynamic": {1.5: {0}}}, TypeError, "dynamic names the argument 1.5; expected a name or a flat position"),
    ({"dynamic": {True: {0}}}, TypeError, "dynamic names the argument True"),
    ({"dynamic": {-1: {0}}}, ValueError, "dynamic names the argument -1"),
    ({"dynamic": {"x": 0}}, TypeError, r"dynamic\['x'\] is 0; expected a set of axes, as in \{0\}, not int"),
    ({"dynamic": {"x": {"n"}}}, TypeError, r"dynamic\['x'\] names the axis 'n'; expected an axis: an integer"),
    ({"dynamic": {"x": [0, "n"]}}, TypeError, "names the axis 'n'"),
    ({"dynamic": {"x": {-1}}}, ValueError, r"dynamic\['x'\] names the axis -1"),
    ({"dynamic": {"x": {1.0: None}}}, TypeError, "names the axis 1.0"),
    ({"dynamic": {"x": {"inner": 3}}}, TypeError, r"dynamic\['x'\]\['inner'\] is 3"),
]


@pytest.mark.parametrize("given", RIGHT, ids=str)
def test_right_options_are_kept(given: dict[str, Any]) -> None:
    assert check(**given) == Options(**given)


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda case: str(case)[:40])
def test_wrong_options_are_errors_that_say_what_is_right(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check(**given)


def test_a_recipe_brings_its_options() -> None:
    assert check(recipe="apollo{tune='30s'}") == check(recipe="apollo", tune="30s")
    assert check(recipe="cpu{memory_budget='50%', tune=2}") == check(recipe="cpu", budget="50%", tune=2)


def test_checking_imports_nothing_heavy() -> None:
    code = "import sys; from daceopt.modules.options import check; check(recipe='cpu'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"dace", "onnx", "sympy", "torch"} & set(done.stdout.split())
