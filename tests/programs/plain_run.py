"""Run in a process that knows nothing of daceopt: loads SDFGs that it has written, and runs them by plain DaCe.

``python plain_run.py FOLDER``: for each ``NAME.sdfg`` of the folder, ``NAME.npz`` has the arguments by name; what the
program leaves in them is written to ``NAME-out.npz``.
"""

import os
import sys
from pathlib import Path

import dace
import numpy as np


def run(file: Path) -> None:
    sdfg = dace.SDFG.from_file(str(file))
    sdfg.validate()
    given = {name: value.copy() for name, value in np.load(file.with_suffix(".npz")).items()}
    sizes = {name: int(value) for name, value in given.items() if name not in sdfg.arrays}
    arrays = {name: value for name, value in given.items() if name in sdfg.arrays}
    sdfg(**arrays, **sizes)
    np.savez(file.with_name(f"{file.stem}-out.npz"), **arrays)


folder = Path(sys.argv[1])
os.chdir(folder)
for path in sorted(folder.glob("*.sdfg")):
    run(path)
assert not [name for name in sys.modules if name.split(".")[0] in ("daceopt", "torch")]
