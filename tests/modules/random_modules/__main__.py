"""``python -m tests.modules.random_modules SEED``: the program of a seed, and what it does otherwise."""

from __future__ import annotations

import sys

from tests.modules.random_modules.running import compare
from tests.modules.random_modules.writer import Writer


def main() -> None:
    """Print the program, and what differs; programs are compiled."""
    text = Writer(int(sys.argv[1])).program()
    print(text)
    print(f"# {compare(text) or 'the same'}")


if __name__ == "__main__":
    main()
