"""Headers of generated code."""

from pathlib import Path

INCLUDE = Path(__file__).parent
