"""Addresses of Spark Connect servers, and what is shipped to them."""

import subprocess
import sys
import uuid
import zipfile
from unittest.mock import MagicMock

import grpc
import pytest

from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.runners.code_shipping import AT_HOME, shipment
from airflow_provider_backpressure.runners.connect_session import Address


def test_an_address_shows_no_token() -> None:
    """Its parameters stay out of sentences."""
    address = Address("sc://spark.example:15003/;token=canary;use_ssl=true")
    assert (address.host, address.port, str(address)) == ("spark.example", 15003, "sc://spark.example:15003")
    assert Address("sc://[::1]").port == 15002


@pytest.mark.statement("X5")
@pytest.mark.parametrize(
    "remote", ["http://host:1", "sc://", "sc://host:port", "sc://host/path", "sc://h/;token=a=canary"]
)
def test_what_is_no_address_is_refused_without_its_secrets(remote: str) -> None:
    """X5: in one sentence, and its cause, which quotes the address, is not kept."""
    with pytest.raises(InvalidDeclaration, match="is not the address of a Spark Connect server") as raised:
        Address(remote)
    assert "canary" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_session_id_must_be_one() -> None:
    """Before anything is connected."""
    with pytest.raises(InvalidDeclaration, match="not a UUID"):
        Address("sc://host:1").open("lane-1")


def test_a_server_that_makes_no_clones_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The session that was to be its model is given back, and what will stay on the server is said."""
    model, wanted, asked = MagicMock(), MagicMock(), str(uuid.uuid4())
    model.client.clone.side_effect = grpc.RpcError("UNIMPLEMENTED")
    monkeypatch.setattr(Address, "open", lambda self, session_id: wanted if session_id == asked else model)
    assert Address("sc://host:1").begin(asked) is wanted
    model.conf.set.assert_called_once_with("spark.sql.artifact.isolation.enabled", "false")
    model.client.release_session.assert_called_once_with()
    model.client._channel.close.assert_called_once_with()
    assert "sc://host:1 makes no clone of a session" in caplog.text


def test_the_shipment_is_all_that_a_task_imports() -> None:
    """From the zip alone, without Airflow and SQLAlchemy, by a Python that has nothing of ours installed."""
    path = shipment()
    assert path == shipment()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    rooms = {name.split("/")[1] for name in names}
    assert rooms == {"__init__.py", "exceptions.py", "connectors", "core", "spark"}
    assert not [name for name in names if "/connectors/" in name and AT_HOME & set(name.split("/"))]
    assert not [name for name in names if "/core/planning/" in name or "/core/execution/" in name]
    script = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f).lower()];"
        f"sys.path.insert(0, {str(path)!r});"
        "import airflow_provider_backpressure.spark.job as job;"
        f"assert job.__file__.startswith({str(path)!r}), job.__file__;"
        "assert not {'airflow', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
