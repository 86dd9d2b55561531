"""Machine models: the built-in ones, users' files, and what is refused of these."""

from __future__ import annotations

import re
from pathlib import Path

import dace
import pytest

from daceopt.cost import machines
from daceopt.cost.machine import Machine
from daceopt.cost.machines import MachineModel, this_cpu
from daceopt.errors import DaceoptError, MachineFileError

GOOD = (Path(machines.__file__).parent / "stcp920.toml").read_text()
BUILT_IN = ["ascend910", "goya", "h200", "ipu", "stcp920"]


def test_the_papers_machine_is_equation_2() -> None:
    found = machines.get("stcp920")
    assert (found.clusters, found.cores, len(found.units)) == (4, 8, 3)
    assert (found.local.size, found.shared.size, found.memory.bandwidth) == (64 << 10, 8 << 20, 136e9)
    assert found.local_size == 512 << 10
    assert (found.room("local"), found.room("shared")) == (384 << 10, 7 << 20)
    assert found.clusters * found.cores * found.unit("product").rate == pytest.approx(128e12)


def test_names_are_those_that_get_knows() -> None:
    assert machines.names() == sorted(["cpu", *BUILT_IN])
    for name in BUILT_IN:
        assert machines.get(name).name == name
    with pytest.raises(DaceoptError, match=r"no machine 'stcp921'.*did you mean 'stcp920'"):
        machines.get("stcp921")


@pytest.mark.parametrize("name", BUILT_IN)
def test_faster_memories_are_smaller(name: str) -> None:
    found = machines.get(name)
    assert found.local_size <= found.shared.size * 2 < found.memory.size
    assert found.memory.bandwidth < found.shared.bandwidth < found.local.bandwidth * found.cores * 16


def test_units_do_what_they_are_for() -> None:
    found = machines.get("stcp920")
    assert [found.unit(work).name for work in machines.WORK] == ["MME", "VME", "vector"]
    assert found.seconds("product", 4e12, 1) == 1 and found.seconds("product", 4e12, 4) == 0.25
    goya = machines.get("goya")
    assert goya.count(goya.unit("product")) == 1
    assert goya.seconds("product", 5e13, 9) == goya.seconds("product", 5e13, 1) == 1


def test_floats_are_stored_as_the_machine_has_them() -> None:
    found = machines.get("stcp920")
    assert [found.itemsize(t) for t in (dace.float64, dace.float32, dace.int64, dace.uint8)] == [2, 2, 8, 1]


def test_this_cpu_has_its_caches_as_buffers() -> None:
    measured = Machine("cpu", 2, 32 << 10, 1 << 20, 8 << 20, ((1 << 20, 100e9), (1 << 30, 10e9)), 1e12)
    found = this_cpu.model_of(measured)
    assert (found.clusters, found.cores, found.local.size, found.shared.size) == (1, 2, 1 << 20, 8 << 20)
    assert found.local.bandwidth == 50e9 and found.memory.bandwidth == 10e9
    assert found.unit("product").rate == 5e11 and found.unit("element-wise").name == "vector"


def test_no_name_is_the_machine_that_is_assumed() -> None:
    with machines.assume(machines.get("ipu")):
        assert machines.get("").name == "ipu"


def changed(tmp_path: Path, old: str, new: str) -> MachineModel:
    text, count = re.subn(old, new, GOOD, count=1, flags=re.MULTILINE)
    assert count == 1
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return machines.get(str(path))


def test_users_bring_their_own(tmp_path: Path) -> None:
    found = changed(tmp_path, 'name = "stcp920"', 'name = "mine"')
    assert found.name == "mine" and found.units == machines.get("stcp920").units


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (r"^size = 65_536", "size = 0", r"mine\.toml, key local\.size: expected a number above 0, found 0"),
        (r"^size = 65_536", "size = 1.5", r"key local\.size: expected a whole number, found 1\.5"),
        (r"^size = 65_536", "size = true", r"key local\.size: expected a whole number, found True"),
        (r"\[shared\][^[]*", "", r"key shared: expected a table, it is missing"),
        (r"^bandwidth = 5.12e11", "", r"key shared\.bandwidth: expected a number, it is missing"),
        (r"^bandwidth = 1.36e11", "bandwidth = nan", r"key memory\.bandwidth: expected a number, found nan"),
        (r"^bandwidth = 1.36e11", "bandwidth = inf", r"key memory\.bandwidth: expected a number, found inf"),
        (r"^rate = 4.0e12", "rate = -4.0e12", r"key units\[0\]\.rate: expected a number above 0, found -4"),
        (r"^clusters = 4", "clusters = -1", r"key clusters: expected a number above 0, found -1"),
        (r"^cores = 8", 'cores = "8"', r"key cores: expected a whole number, found '8'"),
        (r"^launch", "lunch", r"key lunch: expected one of .*, found the key 'lunch'; did you mean 'launch'"),
        (r"^launch = 5.0e-6", "launch = -1", r"key launch: expected a number that is not negative, found -1"),
        (r'runs = \["product"\]', "runs = []", r"key units\[0\]\.runs: expected a list of some of .*, found \[\]"),
        (r'runs = \["product"\]', 'runs = ["dance"]', r"key units\[0\]\.runs: .* found \['dance'\]"),
        (r'runs = \["product"\]', 'runs = ["element-wise"]', r"key units: expected a unit that runs 'product'"),
        (r'name = "VME"', 'name = "MME"', r"key units: expected units of different names"),
        (r'name = "stcp920"', "", r"key name: expected a name, it is missing"),
        (r"^clock = 1.0e9", "clock = ", r"expected a TOML file"),
        (
            r"^reserved = 16_384",
            "reserved = 65536",
            r"key local\.reserved: expected less than its 65536 bytes, found 65536",
        ),
        (r"^float_bytes = 2", "float_bytes = 0", r"key float_bytes: expected a number above 0, found 0"),
    ],
)
def test_nonsense_is_refused_with_its_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(MachineFileError, match=message):
        changed(tmp_path, old, new)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MachineFileError, match="expected a TOML file"):
        machines.load(tmp_path / "none.toml")
