"""``python -m benchmarks [names]``: run benchmarks, print a table; with ``--output DIR`` also write JSON."""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

from benchmarks import cases as _cases  # noqa: F401  (registers the cases)
from benchmarks.harness import CASES, Budget, run, save


def main(argv: list[str] | None = None) -> int:
    """Run what the arguments name; 0 when every goal was met, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="daceopt beside eager PyTorch and torch.compile.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--output", type=Path, metavar="DIR", help="a folder for the results as JSON (default: none)")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.names) - set(CASES))
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are: {', '.join(CASES)}")
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)  # an error now, not after the measurements
    logging.getLogger("torch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third parties' between the lines of the table
        results = run(options.names, Budget.quick() if options.quick else Budget())
    if options.output is not None:
        print(f"written: {save(results, options.output)}")
    return int(any(result.met is False for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
