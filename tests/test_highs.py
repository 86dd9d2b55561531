"""The solver of integer programs: nothing of what it prints into a process is shown, all else is."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("highspy")


def test_the_banner_is_not_shown():
    """Of versions that print one from C as a solver is made; buffered text of C and of the process stays in order."""
    code = """
        import ctypes, sys
        import highspy

        made = highspy.Highs

        class Printing(made):
            printed = False

            def __init__(self):
                if not Printing.printed:
                    Printing.printed = True
                    libc.puts(b"Running HiGHS 9.9 (git hash: 0)")
                    libc.puts(b"another's line")
                super().__init__()

        libc = ctypes.CDLL(None)
        highspy.Highs = Printing
        libc.puts(b"before")
        from daceopt import highs

        solvers = [highs.new() for _ in range(3)]
        libc.puts(b"after")
    """
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert found.stdout == "before\nanother's line\nafter\n" and found.stderr == ""
