"""Archives on the path cost nothing from one task to the next."""

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from airflow_provider_backpressure.spark.task import forget_archives


def test_an_archive_is_not_read_again_before_each_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in_archive_one.py", "VALUE = 1")
        file.writestr("in_archive_two.py", "VALUE = 2")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("in_archive_one").VALUE == 1
    assert isinstance(sys.path_importer_cache[str(archive)], zipimport.zipimporter)
    read: list[str] = []
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", lambda self: read.append(self.archive))
    forget_archives()
    importlib.invalidate_caches()
    assert read == []
    assert importlib.import_module("in_archive_two").VALUE == 2, "it can be imported from all the same"
