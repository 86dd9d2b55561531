"""A memory budget as people write it: a share of what eager PyTorch saves for the backward, or bytes.

Imports nothing: options are looked at before anything is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from daceopt.errors import DaceoptError

_UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_EXPECTED = "None, a percentage such as '60%', or bytes: an integer, or text such as '512MB' or '1.5GiB'"


def check(name: str, budget: object) -> None:
    """Raise TypeError for a budget of the wrong type and ValueError for one that is none."""
    wrong = f"{name}={budget!r}; expected {_EXPECTED}"
    if budget is None:
        return
    if isinstance(budget, bool) or not isinstance(budget, int | str):
        raise TypeError(f"{wrong}, not {type(budget).__name__}")
    share, count = _parse(budget)
    if share is None and count is None:
        raise ValueError(wrong)
    if not (share if share is not None else count):
        raise ValueError(f"{wrong}, more than 0")


def resolve(budget: int | str, reference: Callable[[], int] | None) -> int:
    """The bytes of a budget; ``reference``: what a percentage is of. Raises DaceoptError where there is none."""
    share, count = _parse(budget)
    if share is None:
        return int(count or 0)
    if reference is None:
        raise DaceoptError(
            f"a budget of {budget} is a share of what eager PyTorch saves, which is not known here; give bytes instead"
        )
    return int(share * reference())


def _parse(budget: int | str) -> tuple[float | None, float | None]:
    """(share, None), (None, bytes), or (None, None)."""
    if isinstance(budget, int):
        return None, float(budget) if budget >= 0 else None
    matched = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-zA-Z]*)\s*", budget)
    if matched is None:
        return None, None
    number, unit = float(matched[1]), matched[2].upper()
    if unit == "%":
        return number / 100, None
    return None, number * _UNITS[unit or "B"] if unit in _UNITS or not unit else None
