"""Random modules as people write them, called by random scripts, do what they do in eager PyTorch, in float64."""

from __future__ import annotations

import pytest

from tests.modules.random_modules.running import compare
from tests.modules.random_modules.writer import Writer

pytestmark = [
    pytest.mark.usefixtures("interpreted"),
    pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning"),  # people use it all the same
]

DEFAULT = range(12)
LONG = range(len(DEFAULT), 600)


def _check(seed: int, fallback: str = "silent") -> None:
    text = Writer(seed).program()
    difference = compare(text, fallback)
    assert difference is None, f"{difference}\n{text}"


@pytest.mark.parametrize("seed", DEFAULT)
def test_random_modules(seed: int) -> None:
    _check(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", LONG)
def test_hundreds_of_random_modules(seed: int) -> None:
    _check(seed, "raise" if seed % 4 == 0 else "silent")


def test_a_program_is_its_seed() -> None:
    assert Writer(3).program() == Writer(3).program() != Writer(4).program()


def test_what_differs_is_told() -> None:
    text = (
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    )
    text += "def step(net, draw, see, *_):\n    see('out', net(draw(3)))\nSTEPS = [step]\n"
    assert compare(text) is None
    planted = "torch.compiler.is_compiling()"
    found = compare(text.replace("x * 2", f"x * (3 if {planted} else 2)"))
    assert found is not None and found.startswith("step: out: error 5.0e-01")
