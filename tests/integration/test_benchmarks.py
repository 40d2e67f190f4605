"""The benchmark from end to end, small: figures of such a size mean nothing, but every side arrives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def test_every_side_arrives_and_stands_in_the_table(repository: Path, tmp_path: Path) -> None:
    """The floor and both of our paths, one round of 20,000 rows, by the command that people use."""
    results = tmp_path / "results.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.pg_to_pg", "--rows", "20000", "--rounds", "1", "--heap", "1g"),
            *("--warm-rows", "0", "--sides", "raw,copy,frame", "--json", str(results)),
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())
    table = done.stdout.partition("medians")[2]
    assert all(title in table for title in ("raw COPY | COPY", "ours, copy path", "ours, frame path"))
    assert {one["side"]: (one["rows"], one["equal"], one["error"]) for one in found["measurements"]} == {
        "raw": (20_000, True, None),
        "copy": (20_000, True, None),
        "frame": (20_000, True, None),
    }
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
