"""``python -m daceopt``: the command line. Every command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from daceopt.errors import DaceoptError

_FAILED, _USAGE = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 1 when what it checks failed, 2 with one line on stderr for an error."""
    options = _parser().parse_args(argv)
    try:
        return int(options.run(options) or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except (DaceoptError, ImportError, OSError) as error:
        if options.debug:
            raise
        print(f"daceopt {options.command}: {_one_line(error)}", file=sys.stderr)
        return _USAGE


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    hint = "; `daceopt doctor` says what is missing and how to install it" if isinstance(error, ImportError) else ""
    return text + hint


def _parser() -> argparse.ArgumentParser:
    from daceopt._version import __version__

    parser = argparse.ArgumentParser(prog="daceopt", description="Optimizes PyTorch modules and ONNX models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _command(commands, "doctor", _doctor, "what this machine has and lacks, and what to install")
    _command(commands, "demo", _demo, "optimize four models, check them and compare the times")
    explain = _model_command(commands, "explain", _explain, "what a model moves and computes, and what each step did")
    explain.add_argument("--html", type=Path, metavar="FILE", help="write the report as HTML too")
    explain.add_argument("--kernel", metavar="NAME", help="print schedule and C++ of the kernels called NAME or so")
    optimize = _model_command(commands, "optimize", _optimize, "compile a model, compare it and write it")
    optimize.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write what daceopt.load runs, the graph and the report here"
    )
    optimize.add_argument("--seconds", type=float, default=1.0, help="time to spend on measuring (default: 1)")
    for command in (explain, optimize):
        command.add_argument(
            "--inputs",
            type=Path,
            metavar="FILE",
            help="an .npz file with an ONNX model's inputs by name, not random ones",
        )
    _model_command(commands, "bisect", _bisect, "find the step and the site of a recipe that breaks a model")
    bench = _command(commands, "bench", _bench, "measurements beside eager PyTorch and torch.compile")
    bench.add_argument("names", nargs="*", help="benchmarks to run (default: all)")
    bench.add_argument("--quick", action="store_true", help="fewer repetitions")
    bench.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write the results as JSON here (default: nowhere)"
    )
    cache = _command(commands, "cache", _cache, "show or empty the compilation cache")
    cache.add_argument("action", choices=("info", "clear"))
    operators = _command(
        commands, "operators", _operators, "table of the operators: how each is lowered, its types, its gradient"
    )
    operators.add_argument("--aten", action="store_true", help="those of ATen, for modules, rather than ONNX's")
    operators.add_argument("--markdown", action="store_true", help="as docs/operators.md and docs/aten.md have it")
    return parser


def _command(commands: Any, name: str, run: Callable[[Any], int | None], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run)
    return parser


def _model_command(commands: Any, name: str, run: Callable[[Any], int | None], text: str) -> argparse.ArgumentParser:
    parser = _command(commands, name, run, text)
    parser.add_argument("model", help="an ONNX file, or file.py:name of a module or of what makes one")
    parser.add_argument("--recipe", default="auto", help="name of a recipe (default: auto)")
    parser.add_argument(
        "--load", type=Path, action="append", default=[], metavar="FILE", help="register the transformations of a file"
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="STEP",
        help="add a step, e.g. my-fusion{size=32}, after its level's last",
    )
    parser.add_argument("--verify", choices=("structure", "numerics"), help="check the graph around every step")
    return parser


def _recipe(options: Any) -> Any:
    """The recipe that the options describe, with files loaded before it is looked up."""
    from daceopt import recipes, transformations

    for path in options.load:
        transformations.load_file(path)
    recipe = recipes.get(options.recipe)
    for step in options.add:
        recipe = recipe + step
    return recipe


def _doctor(options: Any) -> int:
    from daceopt import doctor

    return doctor.main()


def _demo(options: Any) -> int:
    from daceopt import demo

    return 0 if demo.run() else _FAILED


def _explain(options: Any) -> int:
    report = _report(options)
    if options.kernel is not None:
        return _print_kernels(report, options.kernel)
    print(report)
    if options.html is not None:
        options.html.write_text(report.html(), encoding="utf-8")
        print(f"written: {options.html}")
    return 0


def _report(options: Any) -> Any:
    from daceopt.capture.onnx_file import load
    from daceopt.explore import explain
    from daceopt.onnx_arrays import from_file

    found, chosen = _model(options), {"recipe": _recipe(options), "verify": options.verify}
    if not isinstance(found, Path):
        return explain(found.module, *found.args, **found.kwargs, **chosen)
    model = load(found)  # a damaged file is an error of this command, not a property to report
    stored = {t.name for t in model.graph.initializer}
    names = [v.name for v in model.graph.input if v.name not in stored]
    inputs = from_file(options.inputs, names) if options.inputs is not None else []
    return explain(found, *inputs, **chosen)


def _print_kernels(report: Any, text: str) -> int:
    """Schedule and C++ of some kernels; where the model is not compiled, the reason."""
    if not report.kernels:
        raise DaceoptError(f"there are no kernels: {report.reason or '; '.join(report.notes)}")
    for kernel in report.matching(text):
        print(kernel.text())
    return 0


def _model(options: Any) -> Any:
    """The ONNX file's path, or the module that a Python file makes."""
    from daceopt.user_model import find

    found = find(options.model)
    if not isinstance(found, Path) and getattr(options, "inputs", None) is not None:
        raise DaceoptError("--inputs is for ONNX files: a Python file says itself on what its module is called")
    return found


def _optimize(options: Any) -> int:
    from daceopt import optimize

    recipe = _recipe(options)
    summary = optimize.run(_model(options), recipe, options.verify, options.output, options.seconds, options.inputs)
    print(summary)
    if summary.refused:
        raise DaceoptError(f"{options.output} has no program: {summary.refused}")
    return 0 if summary.correct else _FAILED


def _bisect(options: Any) -> int:
    from daceopt.bisect import bisect

    recipe = _recipe(options)
    found = bisect(recipe, *_graph(_model(options)))
    print(found if found is not None else "no step of the recipe breaks the model")
    return 0 if found is None else _FAILED


def _graph(model: Any) -> tuple[Any, dict[str, Any] | None]:
    """The graph before any recipe, and the arrays that it is called on where they are known."""
    from daceopt.capture.onnx_file import load
    from daceopt.importer import import_model

    if isinstance(model, Path):
        return import_model(load(model)), None
    frozen = model.frozen()
    graph = frozen.load().graph
    return graph, dict(zip(graph.inputs, frozen.feeds, strict=True))


def _bench(options: Any) -> int:
    import subprocess

    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    if not folder.is_dir():
        raise DaceoptError(f"expected the benchmarks in {folder}: run this command in a checkout of the source")
    # -B: nothing is written into the checkout, compiled modules included.
    command = [sys.executable, "-B", "-m", "benchmarks", *options.names, *(["--quick"] if options.quick else [])]
    if options.output is not None:
        command += ["--output", str(options.output.absolute())]
    return subprocess.call(command, cwd=folder.parent)


def _cache(options: Any) -> None:
    from daceopt.build.cache import default_cache

    cache = default_cache()
    if options.action == "clear":
        print(f"{cache.clear()} entries removed from {cache.folder}")
        return
    stats = cache.stats()
    print(f"folder  {stats.folder}\ntotal   {stats.total_bytes / 1e6:.1f} MB of at most {stats.limit / 1e6:.0f} MB")
    for kind in sorted(stats.entries):
        print(f"{kind:<8}{stats.entries[kind]} entries, {stats.bytes[kind] / 1e6:.1f} MB")


def _operators(options: Any) -> None:
    if options.aten:
        from daceopt.capture.torch import rule_table

        rules = rule_table.rows()
        print(rule_table.markdown(rules) if options.markdown else rule_table.text(rules), end="")
        return
    from daceopt.ops.operator_table import compact, coverage, markdown, summary

    rows = coverage()
    if options.markdown:
        print(markdown(rows), end="")
        return
    print(f"{'operator':<32}{'how':<10}{'gradient':<10}{'versions':<32}types")
    for row in rows:
        name = f"{row.domain}.{row.op_type}" if row.domain else row.op_type
        refused = f" (not {compact(row.refused)})" if row.types and row.refused else ""
        versions = " ".join(map(str, row.versions))
        print(f"{name:<32}{row.how:<10}{row.gradient or '-':<10}{versions:<32}{compact(row.types)}{refused}")
    print(f"\n{summary(rows)}")
