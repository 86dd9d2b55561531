"""All that two ranks check by default, one after the other in one pair of processes: these start in many seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.distributed import equality, ranks, searched, sharded, stepwise, tuned

_FILES = {"equality": equality.CHECKS, "sharded": sharded.CHECKS, "searched": searched.CHECKS}
_FILES |= {"tuned": tuned.CHECKS}

CHECKS: dict[str, Callable[[], Any]] = {
    **{f"{file}.{check.__name__}": check for file, checks in _FILES.items() for check in checks},
    **{f"stepwise.{name}": check for name, check in stepwise.CHECKS.items()},
}

if __name__ == "__main__":
    ranks.main(CHECKS)
