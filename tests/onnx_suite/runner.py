"""Hands batches to worker processes and collects the results; finds out which case crashed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
BATCH = 48

Results = dict[str, str]  # name -> reason of its failure, empty for a success
WORKER = (sys.executable, "-m", "tests.onnx_suite.worker")


class Worker:
    """One worker process; ``run`` gives a result for each name, whatever happens over there."""

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @cached_property
    def cases(self) -> dict[str, tuple[str, bool]]:
        """Name -> kind, and whether all its tensors are of numbers."""
        assert self._process.stdout is not None
        return {name: tuple(found) for name, found in json.loads(self._process.stdout.readline()).items()}

    def run(self, names: Sequence[str], mode: str, recipe: str = "none") -> Results:
        """The results of a batch. If it does not survive, what is left runs case by case."""
        if not names:
            return {}
        results, doing, code = self._batch(names, mode, recipe)
        left = [name for name in names if name not in results]
        if len(names) == 1 or not left:
            return {**results, **dict.fromkeys(left, _death(code, doing))}
        for name in left:
            results |= self.run([name], mode, recipe)
        return results

    def run_all(self, names: Sequence[str], mode: str) -> Results:
        """The results of so many names that several batches are better."""
        batches = [names[k : k + BATCH] for k in range(0, len(names), BATCH)]
        return {name: reason for batch in batches for name, reason in self.run(batch, mode).items()}

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _batch(self, names: Sequence[str], mode: str, recipe: str) -> tuple[Results, str, int]:
        assert self.cases and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"names": list(names), "mode": mode, "recipe": recipe}) + "\n")
        self._process.stdin.flush()
        results: Results = {}
        doing = ""
        for line in self._process.stdout:
            message = json.loads(line)
            if "exit" in message:
                return results, doing, message["exit"]
            if "doing" in message:
                doing = message["doing"]
            else:
                results[message["name"]] = message["reason"]
        raise RuntimeError(f"the worker ended with code {self._process.wait()}")


def _death(code: int, doing: str) -> str:
    if code == -signal.SIGALRM:
        return f"Timeout in {doing or 'the build'}"
    return f"Crash: {signal.Signals(-code).name}" if code < 0 else f"Crash: exit code {code}"


@contextmanager
def workers(count: int, command: Sequence[str] = WORKER) -> Iterator[SimpleQueue[Worker]]:
    """A queue of idle workers."""
    made = [Worker(command) for _ in range(count)]
    queue: SimpleQueue[Worker] = SimpleQueue()
    for worker in made:
        queue.put(worker)
    try:
        yield queue
    finally:
        for worker in made:
            worker.close()


def run(
    names: Sequence[str],
    mode: str,
    *,
    jobs: int = 2,
    recipe: str = "none",
    advance: Callable[[Results], None] = lambda results: None,
    command: Sequence[str] = WORKER,
) -> Results:
    """Run the named cases in ``jobs`` processes; ``advance`` is told of each batch as it ends."""
    batches = [list(names[k : k + BATCH]) for k in range(0, len(names), BATCH)]
    results: Results = {}
    with workers(min(jobs, len(batches)), command) as idle, ThreadPoolExecutor(max(1, min(jobs, len(batches)))) as pool:

        def serve(batch: list[str]) -> Results:
            worker = idle.get()
            try:
                return worker.run(batch, mode, recipe)
            finally:
                idle.put(worker)

        for found in pool.map(serve, batches):
            results |= found
            advance(found)
    return results
