"""``python -m benchmarks world [names] [--share k/n]``: a process for each row and stage, results kept and resumed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.worker import caches
from benchmarks.world import report
from benchmarks.world.catalogue import Row, chosen
from benchmarks.world.environments import interpreter
from benchmarks.world.worker import STAGES

_ROOT = Path(__file__).resolve().parents[2]
RESULTS = _ROOT / "build" / "world"
SECONDS = 2.0  # of measuring, for each contender


class Job(NamedTuple):
    """A stage of a row in one mode."""

    row: Row
    mode: str
    stage: str

    def file(self, folder: Path) -> Path:
        name = f"{self.row.label}/{self.mode}/{self.stage}".replace("/", "__")
        return folder / f"{name}.json"


def main(arguments: Sequence[str]) -> int:
    """Run what is named and has no result yet, then write the report; 1 if anything is wrong."""
    options = _parser().parse_args(arguments)
    at, of = map(int, options.share.split("/"))
    jobs = [
        Job(row, mode, stage)
        for stage in options.stages.split(",")
        for row in chosen(options.names)[at % of :: of]
        for mode in row.modes
        if options.mode in ("both", mode) and stage in (row.stages or STAGES)
    ]
    options.results.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for job, found in _results(jobs, options):
        wrong += found.get("right") is False
        print(f"{job.row.label} {job.mode} {job.stage}: {report.line(found)}", flush=True)
    if options.record:
        report.write(options.results)
    return int(wrong > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks world", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages or package/program (default: all)")
    parser.add_argument("--share", default="0/1", metavar="K/N", help="every nth row, from the kth")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"of {', '.join(STAGES)} (default: all)")
    parser.add_argument("--mode", default="both", choices=("both", "training", "inference"))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a process")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument("--again", action="store_true", help="measure what has a result, too")
    parser.add_argument("--record", action="store_true", help="write docs/results/world.md")
    parser.add_argument("--together", action="store_true", help="a process for many rows: quicker, no cold first steps")
    parser.add_argument("--note", default="", help="about the machine, kept with each result")
    return parser


def _results(jobs: Sequence[Job], options: argparse.Namespace) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Results that are kept, and those of new processes."""
    kept = {} if options.again else _kept(jobs, options.results)
    yield from kept.items()
    for processes in _processes([job for job in jobs if job not in kept], options.together):
        with tempfile.TemporaryDirectory(prefix="daceopt-world-") as folder:
            for batch in processes:
                for job, result in _run(batch, folder, options):
                    job.file(options.results).write_text(json.dumps(result, indent=1), encoding="utf-8")
                    yield job, result


def _processes(jobs: Sequence[Job], together: bool) -> Iterator[list[list[Job]]]:
    """The jobs of each process, by the caches that processes share: many rows for captures and ``together``, else a
    stage of a row. Stages of one row share caches, in the order of ``STAGES``: what one compiles the next one loads.
    """
    many = [job for job in jobs if together or job.stage == "capture"]
    for _, group in groupby(many, key=lambda job: (job.stage, job.row.environment)):
        yield [list(group)]
    rows: dict[tuple[str, str], list[Job]] = {}
    for job in sorted(set(jobs).difference(many), key=lambda job: list(STAGES).index(job.stage)):
        rows.setdefault((job.row.label, job.mode), []).append(job)
    for row in dict.fromkeys((job.row.label, job.mode) for job in jobs):
        yield [[job] for job in rows.get(row, [])]


def _kept(jobs: Sequence[Job], folder: Path) -> dict[Job, dict[str, Any]]:
    """Results in ``folder``, and recorded ones that are no failures: those may be of a slower machine."""
    recorded = {key: result for key, result in report.known().items() if "failure" not in result}
    kept = {job: recorded.get((job.row.label, job.mode, job.stage)) for job in jobs}
    files = {job: job.file(folder) for job in jobs}
    kept |= {job: json.loads(file.read_text(encoding="utf-8")) for job, file in files.items() if file.exists()}
    return {job: result for job, result in kept.items() if result is not None}


def _run(batch: Sequence[Job], folder: str, options: argparse.Namespace) -> Iterator[tuple[Job, dict[str, Any]]]:
    """What a process with its caches in ``folder`` finds, or ``failure``; after one that ends early the rest has
    another process."""
    rest = list(batch)
    while rest:
        with _worker(rest, interpreter(rest[0].row.environment), folder) as process:
            while rest:
                begin = time.perf_counter()
                result = _next(process, options.limit)
                job = rest.pop(0)
                about = {"label": job.row.label, "package": job.row.package, "mode": job.mode, "stage": job.stage}
                seconds = round(time.perf_counter() - begin, 1)
                yield job, {**about, **result, "seconds": seconds, **_circumstances(options.note)}
                if result.get("ended"):
                    break


@contextmanager
def _worker(jobs: Sequence[Job], python: str, folder: str) -> Iterator[subprocess.Popen[str]]:
    named = [f"{job.row.label}:{job.mode}" for job in jobs]
    command = [python, "-m", "benchmarks.world.worker", jobs[0].stage, str(SECONDS), *named]
    environment = {**os.environ, **caches(Path(folder))}
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _next(process: subprocess.Popen[str], limit: float) -> dict[str, Any]:
    """The next line that the process prints."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], limit)
    if not ready:
        return {"failure": f"more than {limit:g} s", "ended": True}
    text = process.stdout.readline()
    if not text:
        return {"failure": f"the process ended with {process.wait()}", "ended": True}
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def _circumstances(note: str) -> dict[str, str]:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True).stdout.strip()
    return {"machine": f"{_machine()}{', ' + note if note else ''}", "commit": commit}


def _machine() -> str:
    """The CPU's name, how many cores of it are ours, and which vector units it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = about.get("flags", "").split()
    units = [name for name in ("amx_tile", "avx512f", "avx2") if name in flags]
    return f"{about.get('model name', platform.processor())}, {os.cpu_count()} cores, {' '.join(units)}"
