"""What the resolver's answers are taken for; the resolver itself is asked by ``make matrix``."""

import subprocess
from typing import Any

import pytest

from dev.matrix import additions
from dev.matrix.additions import Unresolved, check, compare, environments, resolve
from dev.matrix.environments import AIRFLOWS

THERE = {"fastapi": "0.136.3", "pydantic": "2.12.5"}


def answer(monkeypatch: pytest.MonkeyPatch, *, code: int = 0, out: str = "", error: str = "") -> None:
    """Let the resolver answer so."""

    def run(*_: Any, **__: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], code, out, error)

    monkeypatch.setattr(additions.subprocess, "run", run)


def test_each_airflow_has_its_environments() -> None:
    found = environments()
    assert {one.requirement for one in found if "alone" in one.name} == {names[0] for names in AIRFLOWS.values()}
    assert len(found) == 3 * len(AIRFLOWS)


def test_added_changed_and_removed_packages_are_told_apart() -> None:
    assert compare(THERE, {**THERE, "xxhash": "4.1.0"}) == (["xxhash"], [])
    assert compare(THERE, {"fastapi": "0.137.0"}) == ([], ["fastapi 0.136.3 → 0.137.0", "pydantic 2.12.5 → none"])


def test_the_answer_is_read_with_extras_and_without_the_package_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, out="fastapi[standard]==0.136.3\nours @ file:///there\npydantic==2.12.5\nxxhash==4.1.0\n")
    assert resolve(["any"]) == {**THERE, "xxhash": "4.1.0"}
    assert check(THERE, "ours") == (["xxhash"], "")


def test_what_cannot_keep_its_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, code=1, error="Because ours needs\npydantic<2.12 and you require pydantic==2.12.5, it ends.")
    with pytest.raises(Unresolved, match=r"^pydantic==2\.12\.5$"):
        resolve(["any"])
    assert check(THERE, "ours") == ([], "does not go with pydantic==2.12.5")


def test_another_failure_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, code=2, error="no network")
    with pytest.raises(Unresolved, match="no network"):
        resolve(["any"])
    with pytest.raises(SystemExit, match="alone, as released cannot be resolved: no network"):
        additions.run()
