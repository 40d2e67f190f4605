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
    for side in ("copy", "frame"):
        summary = found["summary"][side]
        assert all(summary["cpu"][part] > 0 for part in ("client", "postgres", "spark"))
        assert summary["peak_bytes"] > 0
        assert summary["open"] > 0


@pytest.mark.parametrize(
    "comparison",
    [
        pytest.param(pg_to_parquet.COMPARISON, id="pg_to_parquet"),
        pytest.param(kafka_to_pg.COMPARISON, id="kafka_to_pg"),
        pytest.param(mysql_to_pg.COMPARISON, id="mysql_to_pg"),
    ],
)
def test_every_side_of_the_others_arrives(comparison: Comparison, repository: Path, tmp_path: Path) -> None:
    """Ours and Spark's own, with CPU seconds of every part, the source's server among them."""
    table, found = measured(repository, tmp_path, comparison.module)
    assert all(title in table for title in comparison.sides.values())
    assert outcomes(found) == dict.fromkeys(comparison.sides, (ROWS, True, None))
    for summary in found["summary"].values():
        assert summary["cpu"].keys() == comparison.parts.keys()
        assert all(summary["cpu"][part] > 0 for part in comparison.parts if part != "client")
    assert [one["factor"] > 0 for one in found["requirements"]] == [True] * len(comparison.goals)
