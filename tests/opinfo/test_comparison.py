"""The harness itself: it must see what is wrong."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from daceopt.capture.torch import table
from daceopt.capture.torch.translation import COMPLEX, NONE
from tests.capture.torch.interpreted import compile_interpreted
from tests.opinfo import comparison, document, exclusions, states
from tests.opinfo.batch import Trial
from tests.opinfo.entries import Case, entries
from tests.opinfo.outcome import Arguments, Outcome, run


def outcome(*values: Any) -> Outcome:
    found = Outcome()
    found.add("result", list(values))
    return found


ONE = torch.ones(3)


@pytest.mark.parametrize(
    "ours",
    [ONE * (1 + 1e-5), ONE.double(), torch.ones(4), torch.ones(3).requires_grad_(), torch.tensor([1, torch.nan, 1])],
)
def test_differences_are_seen(ours: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="result 0"):
        comparison.compare(outcome(ours), outcome(ONE), outcome(ONE.double()))


def test_strides_are_seen() -> None:
    with pytest.raises(AssertionError, match="strides"):
        comparison.compare(outcome(torch.ones(2, 3).t().contiguous()), outcome(torch.ones(2, 3).t()), outcome())


def test_rounding_and_the_range_of_a_type_are_not_differences() -> None:
    comparison.compare(outcome(ONE * (1 + 1e-7)), outcome(ONE), outcome(ONE.double()))
    large = torch.tensor([torch.inf, 1.0])
    comparison.compare(outcome(large), outcome(large), outcome(torch.tensor([1e300, 1.0], dtype=torch.float64)))


@pytest.mark.parametrize(("second", "is_rounding"), [(0.0, True), (1e-15, True), (1e-9, False)])
def test_second_gradients_that_cancel(second: float, is_rounding: bool) -> None:
    def found(value: float) -> Outcome:
        result = outcome(ONE.double())
        result.add("gradient", [ONE.double()])
        result.add("second gradient", [ONE.double() * value])
        return result

    eager = found(-2.2e-16)
    with nullcontext() if is_rounding else pytest.raises(AssertionError, match="second gradient"):
        comparison.compare(found(second), eager, eager)


def test_numbers_drawn_at_random_differ_in_their_mean_only() -> None:
    draws = [torch.rand(1000, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    comparison.compare(outcome(draws[0]), outcome(draws[1]), outcome(), by_chance=True)
    with pytest.raises(AssertionError, match="mean"):
        comparison.compare(outcome(draws[0] * 1.2), outcome(draws[1]), outcome(), by_chance=True)


def test_samples_are_the_same_each_time() -> None:
    first, second = (run(Arguments(Case("softmax", "float32", 1)), 1).values for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.values(), second.values()))
    assert "gradient 0" in first


def test_a_program_that_is_wrong_is_found() -> None:
    trial = Trial(Case("tanh", "float32", 0), compile_interpreted, "none")
    trial.check()
    for expected in (trial.eager, trial.exact):
        expected.values["gradient 0"] = expected.values["gradient 0"] * 2
    trial.arguments = Arguments(trial.case)
    with pytest.raises(AssertionError, match="gradient 0"):
        trial.check()


def test_states_are_the_worst_of_the_cases() -> None:
    results = {
        "tanh/float32/0/plain": {"state": "native", "reason": "", "gradient": "native"},
        "tanh/float32/1/plain": {"state": "wrong", "reason": "off"},
        "svd/float32/0/plain": {"state": "host", "reason": "", "gradient": "host", "forward": ["_linalg_svd.default"]},
        "sin/float32/0/plain": "Crash: SIGSEGV",
    }
    found = {n: e.state for n, e in states.by_entry(results).items()}
    assert found == {"tanh": "wrong", "svd": "host", "sin": "crash"}


def test_exclusions_name_entries_and_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sorted({n.partition("/")[0] for n in exclusions.excluded()} - set(entries()))
    monkeypatch.setattr(exclusions, "excluded", lambda: {"sin": "late", "tanh/int64": "why"})
    given = {"sin/float32/0": "native", "cos/int64/0": "wrong"}
    results = {f"{n}/plain": {"state": s, "reason": "r"} for n, s in given.items()}
    assert exclusions.surprises(results) == ["cos/int64/0/plain wrong: r"]
    assert exclusions.idle(results) == ["sin passes, but is excluded: late"]


def test_the_document_says_what_is_recorded_and_which_rules_there_are() -> None:
    current = document.FILE.read_text(encoding="utf-8") == document.render(states.kept_states())
    assert current, "run `python -m tests.opinfo.document`; record entries of other rules by `tests.opinfo --record`"


def test_host_calls_are_of_operators_that_are_recorded_with_a_reason() -> None:
    kept = states.kept_states()
    assert set(kept["entries"]) <= set(entries())
    for name, row in kept["entries"].items():
        used = {*row.get("forward", ()), *row.get("backward", ())}
        assert row["state"] != "host" or used, name
        assert all(kept["hosted"].get(operator, "a reason") for operator in used), name


def test_the_reasons_of_host_calls_are_those_of_the_rules() -> None:
    wrong = []
    for operator, why in states.kept_states()["hosted"].items():
        has_rule = table.overload(operator.removesuffix(".default")) in table.rules(why == COMPLEX)
        if has_rule == (why in (NONE, COMPLEX)):
            wrong.append(f"{operator} has {'a' if has_rule else 'no'} rule, but the reason of its host calls is: {why}")
    assert not wrong, "\n".join(wrong)


def test_what_does_not_run_is_excluded_with_the_reason() -> None:
    bad = {n for n, row in states.kept_states()["entries"].items() if row["state"] not in states.RUNS}
    excluded = {n.partition("/")[0] for n in exclusions.excluded()}
    assert not bad - excluded


def test_an_operator_that_loses_its_rule_is_seen() -> None:
    kept = {"entries": {"tanh": {"state": "native"}}}
    found = {"tanh/float32/0/plain": {"state": "host", "reason": "", "forward": ["tanh.default"], "why": {}}}
    assert "tanh.default" in states.unrecorded(found, kept)[0]
    assert not states.unrecorded(found, {"entries": {"tanh": {"state": "host", "forward": ["tanh.default"]}}})


def test_few_random_numbers_that_some_seeds_repeat_are_known_to_be_random() -> None:
    case = Case("nn.functional.fractional_max_pool3d", "float32", 16)
    again = [run(Arguments(case), 1, seed=s) for s in (0, 1)]
    assert not comparison.differ(*again), "take two seeds that give the same"
    assert Trial(case, compile_interpreted, "none").by_chance
    assert not Trial(Case("add", "float32", 0), compile_interpreted, "none").by_chance


@pytest.mark.parametrize(("error", "is_rounding"), [(4e-16, True), (1e-13, False)])
def test_terms_of_a_gradient_that_cancel(error: float, is_rounding: bool) -> None:
    case = Case("baddbmm", "float64", 5)
    eager = run(Arguments(case), 1)
    found = Outcome(dict(eager.values))
    found.values["gradient 0"] = found.values["gradient 0"] + error
    with nullcontext() if is_rounding else pytest.raises(AssertionError, match="gradient 0"):
        comparison.compare(found, eager, eager, shaken=lambda: [run(Arguments(case), 1, shaken=k) for k in (1, 2)])
