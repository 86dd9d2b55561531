"""What calls take before anything is computed: those of programs, and those of operators in eager PyTorch.

A call of a program in inference takes as long as about six operators of eager PyTorch, and more for each argument:
guards, addresses, memory of results; in training autograd's nodes as well. The numbers are of one machine (a Xeon), and
only their ratios count, those of one interpreter's work to another's: what is decided by them is the same everywhere
and in each run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CallTimes:
    """Microseconds: of a program, for each of its arguments, of an operator in eager PyTorch, of a module around
    operators."""

    program: float
    argument: float
    operator: float
    module: float

    def of_program(self, arguments: int) -> float:
        """A call with so many tensors."""
        return self.program + self.argument * arguments

    def of_eager(self, operators: float, modules: int) -> float:
        """As many operators, called by so many modules."""
        return self.operator * operators + self.module * modules


INFERENCE = CallTimes(program=6.0, argument=1.4, operator=1.15, module=1.0)

TRAINING = CallTimes(program=24.0, argument=7.8, operator=5.6, module=1.0)
"""With the backward pass."""

ENTRY = 35.0
"""Of a piece of a frame that breaks: Dynamo is entered for each, and hands it numbers as tensors. Twenty where there
are no numbers, sixty where there are many."""

WEIGHTS = {"gelu": 5.0, "native_layer_norm": 2.5, "native_batch_norm": 2.5, "_softmax": 2.0, "_log_softmax": 2.0}
"""ATen's operators that take longer than others on a few elements, in terms of these."""

PRODUCT = 2.0
"""The same of products and convolutions."""

ELEMENTS = {
    **dict.fromkeys(("rand", "rand_like", "randn", "randn_like", "normal", "uniform", "randint", "randperm"), 20),
    **dict.fromkeys(
        ("avg_pool2d", "max_pool2d_with_indices", "im2col", "col2im", "pixel_shuffle", "pixel_unshuffle"), 20
    ),
    **dict.fromkeys(("upsample_nearest1d", "upsample_nearest2d", "upsample_linear1d", "upsample_bilinear2d"), 15),
    **dict.fromkeys(("channel_shuffle", "nonzero", "bucketize"), 10),
}
"""ATen's operators whose elements take longer than those of others, in terms of these (one thread of an EPYC, 20,000 to
100,000 elements: pools 1.4 to 2.9 ns, random numbers 3, a sum or a product 0.05 to 0.15)."""
