"""The integer programming solver, HiGHS, as steps use it: quiet, in one thread, and the same on every run."""

from __future__ import annotations

from typing import Any

from daceopt import highs
from daceopt.errors import DaceoptError


def solver(otherwise: str, **options: object) -> Any:
    """A ``highspy.Highs`` with no program yet and these ``options``.

    Raises DaceoptError where it is not installed; ``otherwise`` says what to do without it.
    """
    try:
        new = highs.new()
    except ImportError as error:
        raise DaceoptError(f"the integer program needs HiGHS: pip install highspy, or {otherwise}") from error
    for option, value in {"threads": 1, "random_seed": 0, **options}.items():
        new.setOptionValue(option, value)
    return new
