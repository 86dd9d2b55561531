from __future__ import annotations

import re

from daceopt.distributed.search.step_simulator import StepEvent
from daceopt.explore.report.step_timeline import page


def test_steps_stand_above_each_other_on_one_scale() -> None:
    measured = [StepEvent("computation", "a", 0.0, 2.0), StepEvent("communication", "bucket 0", 1.0, 4.0)]
    simulated = [StepEvent("computation", "a", 0.0, 1.0)]
    found = page({"measured": measured, "simulated": simulated}, "said")
    assert found.index("measured: ") < found.index("simulated: ")
    widths = [float(w) for w in re.findall(r'class="event [a-z]+" x="[\d.]+" y="\d+" width="([\d.]+)"', found)]
    assert widths == [500.0, 750.0, 250.0]


def test_names_are_escaped_and_nothing_is_fetched() -> None:
    hostile = "<script>alert(1)</script>&\"'"
    found = page({hostile: [StepEvent(hostile, hostile, 0.0, 1.0)]}, hostile, hostile)
    assert "<script>alert" not in found
    assert not re.search(r"(?:src|href)=", found)


def test_an_empty_step_is_drawn() -> None:
    assert "<svg" in page({"nothing": []}, "")
