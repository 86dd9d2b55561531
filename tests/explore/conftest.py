"""Where what is explored runs: fixtures of modules for CUDA."""

from tests.modules.conftest import device as device
from tests.modules.conftest import emulated as emulated
