"""Addresses of Spark Connect servers, and what is shipped to them."""

import subprocess
import sys
import zipfile

import pytest

from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.runners.session import Address
from airflow_provider_backpressure.runners.shipment import PARTS, shipment


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


def test_the_shipment_is_all_that_a_task_imports() -> None:
    """From the zip alone, without Airflow and SQLAlchemy, by a Python that has nothing of ours installed."""
    path = shipment()
    assert path == shipment()
    with zipfile.ZipFile(path) as archive:
        rooms = {name.split("/")[1] for name in archive.namelist()}
    assert rooms == {"__init__.py", "exceptions.py", *PARTS}
    script = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f).lower()];"
        f"sys.path.insert(0, {str(path)!r});"
        "import airflow_provider_backpressure.spark.job as job;"
        f"assert job.__file__.startswith({str(path)!r}), job.__file__;"
        "assert not {'airflow', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
