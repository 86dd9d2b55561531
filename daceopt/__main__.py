"""``python -m daceopt``."""

import sys

from daceopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
