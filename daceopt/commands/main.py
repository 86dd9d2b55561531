"""``python -m daceopt``: the command line. The file of a command is imported when it is the one that runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from daceopt._version import __version__
from daceopt.errors import DaceoptError

_USAGE = 2
_COMMANDS = {
    "doctor": "what this machine has and lacks, and what to install",
    "demo": "optimize four models, check them and compare the times",
    "explain": "what a model moves and computes, and what each step did",
    "explore": "a page that walks the optimization of a model: apply, undo, compare, measure, edit schedules",
    "optimize": "compile a model, compare it and write it",
    "bisect": "find the step and the site of a recipe that breaks a model",
    "search": "how operators and gradients are fused on several workers: a strategy as a file",
    "bench": "measurements beside eager PyTorch and torch.compile",
    "cache": "show or empty the compilation cache",
    "operators": "table of the operators: how each is lowered, its types, its gradient",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 1 when what it checks failed, 2 with one line on stderr for an error."""
    words = sys.argv[1:] if argv is None else list(argv)
    command = next((word for word in words if word in _COMMANDS), "")
    try:
        options = _parser(command).parse_args(words)
        return int(import_module(f"daceopt.commands.{options.command}").run(options) or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except (DaceoptError, ImportError, OSError) as error:
        if "--debug" in words:
            raise
        print(f"daceopt {command}: {_one_line(error)}", file=sys.stderr)
        return _USAGE


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    hint = "; `daceopt doctor` says what is missing and how to install it" if isinstance(error, ImportError) else ""
    return text + hint


def _parser(command: str) -> argparse.ArgumentParser:
    """The parser of all commands, of which only ``command`` has its arguments."""
    parser = argparse.ArgumentParser(prog="daceopt", description="Optimizes PyTorch modules and ONNX models.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        own = commands.add_parser(name, help=text, description=text)
        own.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name == command:
            import_module(f"daceopt.commands.{name}").arguments(own)
    return parser
