"""``python -m daceopt``."""

import sys

from daceopt.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
