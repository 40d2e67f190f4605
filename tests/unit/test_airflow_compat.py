"""V4: what Airflow's versions name differently. That older ones have the names is seen by running them."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_backpressure import airflow_compat
from airflow_provider_backpressure.cli import console_script

pytestmark = pytest.mark.statement("V4")

PACKAGE = Path(airflow_compat.__file__).parent


def test_every_name_is_there():
    for name in airflow_compat._MODULES:
        assert getattr(airflow_compat, name) is not None
    assert set(airflow_compat._MODULES_OF_3_1) == set(airflow_compat._MODULES)
    with pytest.raises(AttributeError, match="no attribute 'Connection'"):
        airflow_compat.Connection  # noqa: B018


def test_no_other_module_asks_for_what_differs():
    """A name that moved is imported from here, or Airflow 3.1 does not find it."""
    moved = {"airflow.sdk.definitions.callback", "airflow.sdk.observability", "airflow.sdk.observability.stats"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or path.name == "airflow_compat.py":
                continue
            names = {alias.name for alias in node.names}
            assert node.module not in moved, path
            assert not (node.module == "airflow.sdk" and "conf" in names), path
            assert not (node.module == "airflow.sdk.exceptions" and names - {"AirflowRuntimeError"}), path


@pytest.mark.parametrize(("version", "kept"), [((3, 2), {}), ((3, 3), {"orders": {"frontier": 7}})])
def test_an_asset_s_state_is_kept_where_there_is_a_store(monkeypatch, version, kept):
    stores: dict[str, dict[str, int]] = {}

    class Accessor:
        def __getitem__(self, asset: str) -> SimpleNamespace:
            return SimpleNamespace(set=stores.setdefault(asset, {}).__setitem__)

    monkeypatch.setattr(airflow_compat, "AIRFLOW", version)
    airflow_compat.keep_asset_state({"asset_state_store": Accessor()} if kept else {}, "orders", "frontier", 7)
    assert stores == kept


def test_the_program_has_every_command(monkeypatch, capsys):
    """Airflow 3.1 takes no commands from providers; wrong use exits with 2."""
    monkeypatch.setattr("sys.argv", ["airflow-backpressure", "--help"])
    with pytest.raises(SystemExit):
        console_script.main()
    assert "Show the state of hydrations" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["airflow-backpressure", "statos"])
    with pytest.raises(SystemExit) as stopped:
        console_script.main()
    assert stopped.value.code == 2
