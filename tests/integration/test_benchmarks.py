"""The benchmarks from end to end, small: figures of such a size mean nothing, but every side arrives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kafka_to_pg, mysql_to_pg, pg_to_parquet
from benchmarks.comparison import Comparison

pytestmark = [pytest.mark.integration, pytest.mark.long]
ROWS = 20_000


def measured(repository: Path, tmp_path: Path, module: str, *options: str) -> tuple[str, Any]:
    """Run one round by the command that people use; return the table it printed, and all figures."""
    results = tmp_path / "results.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", f"benchmarks.{module}", "--rows", str(ROWS), "--rounds", "1", "--heap", "1g"),
            *("--warm-rows", "0", "--json", str(results), *options),
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("medians")[2], json.loads(results.read_text())


def outcomes(found: Any) -> dict[str, tuple[int, bool, str | None]]:
    """Return rows, equality and error by side."""
    return {one["side"]: (one["rows"], one["equal"], one["error"]) for one in found["measurements"]}


def test_every_side_arrives_and_stands_in_the_table(repository: Path, tmp_path: Path) -> None:
    """The floor and both of our paths."""
    table, found = measured(repository, tmp_path, "pg_to_pg", "--sides", "raw,copy,frame")
    assert all(title in table for title in ("raw COPY | COPY", "ours, copy path", "ours, frame path"))
    assert outcomes(found) == dict.fromkeys(("raw", "copy", "frame"), (ROWS, True, None))
    assert {one["side"]: one["details"].get("path") for one in found["measurements"]} == {
        "raw": None,
        "copy": "copy",
        "frame": "frame",
    }
    assert found["summary"]["raw"]["cpu"].keys() == {"client", "postgres"}
    assert all(one["small_rows"] == ROWS // 5 and one["small_total"] > 0 for one in found["summary"].values())
    # Two columns and what explains them; the goals speak of it too.
    assert "\n".join(line for line in table.splitlines() if "path: " not in line).count("of raw COPY") == 3
    for side in ("copy", "frame"):
        summary = found["summary"][side]
        assert all(summary["cpu"][part] > 0 for part in ("client", "postgres", "spark"))
        assert summary["peak_bytes"] > 0
        assert summary["open"] > 0
        assert summary["open_cpu"] > 0


@pytest.mark.parametrize(
    "comparison",
    [
        pytest.param(pg_to_parquet.COMPARISON, id="pg_to_parquet"),
        pytest.param(kafka_to_pg.COMPARISON, id="kafka_to_pg"),
        pytest.param(mysql_to_pg.COMPARISON, id="mysql_to_pg"),
    ],
)
def test_every_side_of_the_others_arrives(comparison: Comparison, repository: Path, tmp_path: Path) -> None:
    """The floor, ours and Spark's own, with CPU seconds of every part, the source's server among them."""
    table, found = measured(repository, tmp_path, comparison.module)
    assert all(title in table for title in comparison.sides.values())
    assert outcomes(found) == dict.fromkeys(comparison.sides, (ROWS, True, None))
    for side, summary in found["summary"].items():
        parts = comparison.parts.keys() - ({"spark"} if side.endswith("raw") else set())
        assert summary["cpu"].keys() == parts
        assert all(summary["cpu"][part] > 0 for part in parts - {"client"})
    assert [one["factor"] > 0 for one in found["requirements"]] == [True] * len(comparison.goals)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_is_killed_at_half_time_ends_as_it_is_told(repository: Path, tmp_path: Path) -> None:
    """Ours goes on where it was; a plain COPY has left nothing, and an append of Spark's doubles what it had."""
    rows, results = 400_000, tmp_path / "results.json"
    done = ended(
        repository, "killed", "--rows", str(rows), "--sides", "copy-static,raw,jdbc-tuned", "--json", str(results)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["side"]: one for one in json.loads(results.read_text())["outcomes"]}
    assert {side: (one["lost"], one["error"]) for side, one in found.items()} == dict.fromkeys(found, (0, None))
    ours, plain, spark = found["copy-static"], found["raw"], found["jdbc-tuned"]
    assert 0 < ours["left"] < rows
    assert (ours["equal"], ours["doubled"]) == (True, 0)
    assert ours["again"] <= 4 * rows // 20 + 100
    assert (plain["left"], plain["doubled"]) == (0, 0)
    assert spark["doubled"] == spark["left"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_memory_is_measured_over_sizes_and_with_a_slow_sink(repository: Path, tmp_path: Path) -> None:
    """Every table arrives; slowed down ten times it takes about as much longer."""
    results = tmp_path / "results.json"
    sizes = ("--rows", "100000", "200000", "--range-rows", "50000", "--slower", "10")
    done = ended(repository, "memory", *sizes, "--json", str(results))
    found = json.loads(results.read_text())["cases"]
    assert [(one["rows"], one["sink"], one["equal"]) for one in found] == [
        (100_000, "direct", True),
        (200_000, "direct", True),
        (100_000, "full speed", True),
        (100_000, "10 times slower", True),
    ], done.stdout + done.stderr
    fast, slow = (one["wall_seconds"] for one in found[2:])
    assert slow >= 4 * fast
    assert all(one["peak_bytes"] > 200 * 2**20 for one in found)


@pytest.mark.statement("H10")
@pytest.mark.timeout(900)
def test_eight_sources_two_at_a_time_and_all_at_once(repository: Path) -> None:
    """H10: time and memory of both; the command ends with an error where a target is not its source."""
    done = ended(repository, "at_once", "--rows", "20000", "--range-rows", "5000", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    figures = {int(at_once): [float(figure.replace(",", "")) for figure in rest] for at_once, *rest in lines}
    assert figures.keys() == {2, 8}
    for seconds, half, peak in figures.values():
        assert 0 < half < seconds
        assert peak > 500
    assert figures[2][1] / figures[2][0] < figures[8][1] / figures[8][0], "the first are through sooner"


def ended(repository: Path, module: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a benchmark to its end."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=840, check=False)
