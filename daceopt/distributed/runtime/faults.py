"""Who is to blame where an exchange fails: ranks tell each other through the group's store whether they live, and where
they are."""

from __future__ import annotations

import atexit
import json
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch.distributed as dist

from daceopt.errors import WorkerError
from daceopt.torch_internals.process_groups import store_of

POLL = 0.5  # seconds between two looks at the store
PATIENCE = 4.0  # seconds that the others have to answer
_LAST_LOOK = 20.0  # seconds that a look at the store may take on a busy machine (a file's lock, a slow disk)
_numbers = count()
_ending = threading.Event()
_answering: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """A thread that the interpreter ends inside of the store's C++ would abort the process."""
    _ending.set()
    for thread in list(_answering):
        thread.join(_LAST_LOOK)


class Watch:
    """Counts the exchanges of this rank, and answers when another asks where it is.

    Every rank makes its watches in the same order: they share keys of the store by their number.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self._rank, self._world = group, group.rank(), group.size()
        self._key = f"daceopt/{group.group_name}/{next(_numbers)}"
        self._store: Any = store_of(group)
        self.begun, self.is_inside = 0, False
        if self._world > 1:
            own = weakref.ref(self)
            thread = threading.Thread(target=_answer, args=(own,), name="daceopt-watch", daemon=True)
            _answering.add(thread)
            thread.start()

    @contextmanager
    def count(self) -> Iterator[None]:
        """One exchange more, which the block is in."""
        self.begun += 1
        self.is_inside = True
        yield
        self.is_inside = False  # not where it fails: this rank was there

    @contextmanager
    def inside(self) -> Iterator[None]:
        """An exchange called from Python. Raises WorkerError where it fails."""
        try:
            with self.count():
                yield
        except (dist.DistError, RuntimeError) as error:
            if isinstance(error, WorkerError):
                raise
            raise self.error(str(error).splitlines()[0]) from error

    def error(self, what: str) -> WorkerError:
        """The error that says ``what`` failed, and which ranks are at fault as far as they can be known."""
        try:
            self._store.set(f"{self._key}/failed", "1")
            self._tell()
            answers = self._answers()
        except (dist.DistError, RuntimeError):
            return WorkerError(f"rank {self._rank}: {what}: the rank that holds the store of the group is gone")
        silent = [r for r in range(self._world) if r not in answers]
        furthest = max(start for start, _ in answers.values())
        late = [r for r, (start, is_inside) in answers.items() if not is_inside or start < furthest]
        if silent:
            return WorkerError(f"rank {self._rank}: {what}: {_list(silent)} gave no answer within {PATIENCE:g} s")
        if late:
            place = f"had not begun exchange {furthest}"
            return WorkerError(f"rank {self._rank}: {what}: {_list(late)} {place} while the others waited")
        return WorkerError(f"rank {self._rank}: {what}")

    def publish(self, number: int, reason: str) -> None:
        """Let ranks that take part with nothing of their own know what ``number`` stands for."""
        self._store.set(f"{self._key}/exchange/{number}", reason)

    def published_reason(self, number: int) -> str | None:
        """What it stands for, where a rank has published it."""
        key = f"{self._key}/exchange/{number}"
        return str(self._store.get(key), "utf-8") if self._store.check([key]) else None

    def answer(self) -> bool:
        """Answer if another rank has failed."""
        if not self._store.check([f"{self._key}/failed"]):
            return False
        self._tell()
        return True

    def _tell(self) -> None:
        self._store.set(f"{self._key}/{self._rank}", json.dumps([self.begun, self.is_inside]))

    def _answers(self) -> dict[int, tuple[int, bool]]:
        """Rank -> exchanges that it has begun, and whether it is in one."""
        answers: dict[int, tuple[int, bool]] = {}
        end = time.monotonic() + PATIENCE
        while len(answers) < self._world and time.monotonic() < end:
            for rank in range(self._world):
                if rank not in answers and self._store.check([f"{self._key}/{rank}"]):
                    start, is_inside = json.loads(self._store.get(f"{self._key}/{rank}"))
                    answers[rank] = (int(start), bool(is_inside))
            time.sleep(POLL / 10)
        return answers


def _answer(own: weakref.ref[Watch]) -> None:
    """Until another rank asks, the watch is gone, or the store is."""
    while True:
        watch = own()
        try:
            if watch is None or watch.answer():
                return
        except (dist.DistError, RuntimeError):
            return
        del watch
        if _ending.wait(POLL):
            return


def _list(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
