"""The matrix of faults has a test for each of its cells, on real services, and reports what a run has shown."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.faults import FAULTS, Matrix, declared, page, simulated


def test_every_cell_has_a_test_on_real_services() -> None:
    """All 24, and no test names another one."""
    found = declared()
    assert set(found) == set(FAULTS) == set(range(1, 25))
    for number, tests in found.items():
        real = [test for test in tests if not simulated(test) and not test.startswith("unit/")]
        assert real, f"no test on real services shows fault {number}, {FAULTS[number].name}"


def report(test: str, **known: Any) -> SimpleNamespace:
    return SimpleNamespace(nodeid=test, user_properties=list(known.items()))


@pytest.fixture
def matrix() -> Matrix:
    return Matrix.of(
        {
            "passed": [
                report("tests/chaos/test_links.py::test_a", faults=[9]),
                report("tests/chaos/test_kills.py::test_b", faults=[3], victim="lane", step="in_copy", seed="1"),
                report("tests/chaos/test_simulated.py::test_c", faults=[3, 13], cell="lane in_copy", seeds=1000),
                report("tests/unit/core/execution/test_schedules.py::test_d", faults=[12], schedules=400, seconds=4.0),
                report(
                    "tests/unit/core/execution/test_schedules.py::test_e", faults=[12], mutation="no fence", after=15
                ),
                report("tests/unit/test_x.py::test_of_no_cell"),
            ],
            "failed": [report("tests/chaos/test_disk.py::test_f", faults=[10])],
            "skipped": [
                SimpleNamespace(nodeid="tests/chaos/test_clock.py::test_g", user_properties=[("faults", [11])])
            ],
        }
    )


def test_a_cell_is_shown_by_what_ran_on_real_services(matrix: Matrix) -> None:
    """A simulation adds to it and does not stand for it; one failure is a failure."""
    assert [matrix.verdict(number) for number in (3, 9, 10, 11, 12, 13)] == [
        *("shown", "shown", "FAILED", "not run", "not run", "not run")
    ]
    assert matrix.row(3) == ["shown", "1 passed", "1,000"]
    assert matrix.row(11) == ["not run", "1 skipped", "-"]
    assert not matrix.complete


def test_the_matrix_is_told_in_lines_and_on_a_page(matrix: Matrix) -> None:
    """Each cell, who was killed when, and how much was simulated."""
    lines = "\n".join(matrix.lines())
    assert "2 of 24 cells shown on real services" in lines
    assert "400 schedules simulated, 6,000 a minute" in lines
    assert "mutation noticed after  15 schedules: no fence" in lines
    text = page(matrix, machine="a machine")
    assert "| 9 | partition, half-open, slow link |" in text
    assert "| `in_copy` | 1 of 1 + 1,000 |" in text
