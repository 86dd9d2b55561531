"""What scalar code checks of the numbers of a call: each kind has a bit, and the message of the error that it raises.

``scalar.checked(condition, value, kind)`` is ``value``; where the condition fails, the run ends with the error.
"""

from __future__ import annotations

import numpy as np

from daceopt.errors import RunError

CHANGING = 1 << 30  # no error: arguments are being written
INDEX = 1  # an IndexError; loads note it themselves
MESSAGES = {
    2: "ZeroDivisionError: division of integers by zero",
    4: "expected probabilities between 0 and 1; found another number, or NaN",
    8: "expected weights of 0 or more, finite and with a sum above 0; found others, or NaN",
    16: "expected labels of 0 or more that are less than the number of classes; found others",
    32: "expected standard deviations of 0 or more; found another number, or NaN",
    64: "AssertionError",
    128: "expected as many rows of values as the mask takes",
}
DIVISION, PROBABILITY, WEIGHT, LABEL, DEVIATION, ASSERTION, ROWS = MESSAGES


def require(condition: np.ndarray, value: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """The NumPy form of ``checked``; raises RunError, or IndexError for an index."""
    if not np.all(condition):
        if np.max(kind) == INDEX:
            raise IndexError("an index is out of range")
        raise RunError(MESSAGES[int(np.max(kind))])
    return value
