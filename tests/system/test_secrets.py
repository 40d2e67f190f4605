"""No password is left in what Airflow keeps of its runs: its metadata database, its logs, its home. And no process
shows one while lanes and Spark's jobs are at work.
"""

import json
import re

import pytest
from cryptography.fernet import Fernet

from tests.support.kept import Search
from tests.support.processes import Processes
from tests.system.installation import EARLY, Installation

pytestmark = [pytest.mark.system, pytest.mark.long]

LEDGER = "backpressure_default"


@pytest.mark.statement("X5")
def test_no_password_is_left_in_what_airflow_keeps(installation: Installation):
    """X5: XCom, rendered fields, DAGs, triggers, events, states, logs, `ps`. Only Airflow's table of connections has
    the one that ``setup`` made, which shows that encrypted ones are found; the planted ones, that the others would be.
    """
    with Processes().looking() as processes:
        copied, refused = installation.run("looked_at"), installation.run("locked_out")
        assert copied.ends() == "success", copied.states()
        assert refused.ends() == "failed", "so that a driver's error was logged"
        for dag_id in EARLY:
            installation.first(dag_id).ends()
    assert "not let" in refused.log("hydrate.plan_snapshot")
    written = {
        conn_id: fields["password"]
        for conn_id, fields in installation.airflow.connections.items()
        if fields.get("password")
    }
    search = Search(secrets={**written, LEDGER: password_of_ledger(installation)}, key=fernet_key(installation))

    lane = installation.airflow.request("GET", f"{copied.path}/taskInstances/hydrate.hydrate_ranges")["id"]
    assert processes.commands(lane) > 10, "the lane's process was looked at while it was at work"
    assert processes.commands("pyspark.daemon") > 10, "so were Spark's workers"
    assert processes.leaks(search.secrets) == {}

    files = search.files(installation.home)
    assert files.pop("airflow/connections.json") == set(written), "the secrets backend of this installation"
    assert files.pop("airflow/metadata.url") == search.within(installation.endpoint("airflow").password)
    assert any(path.name.startswith("attempt=") for path in installation.airflow.home.rglob("logs/**/*.log"))
    assert files == {}

    with installation.open("airflow") as link:
        assert search.tables(link) == {"connection": {LEDGER}}
        with link.transaction(force_rollback=True):
            link.execute(
                "UPDATE xcom SET value = %s WHERE ctid = (SELECT min(ctid) FROM xcom)",
                (json.dumps({"plan": ["postgresql://u:" + written["locked_out"]]}),),
            )
            token = Fernet(search.key).encrypt(json.dumps({"login": written["erp"]}).encode()).decode()
            link.execute(
                "INSERT INTO trigger (classpath, kwargs, created_date) VALUES ('planted', %s, now())", (token,)
            )
            planted = {"connection": {LEDGER}, "xcom": {"locked_out"}, "trigger": {"erp"}}
            assert search.tables(link) == planted


def fernet_key(installation: Installation) -> str:
    """Return the key that Airflow has made for this installation."""
    found = re.search(r"^fernet_key = (\S+)$", (installation.airflow.home / "airflow.cfg").read_text(), re.MULTILINE)
    assert found is not None
    return found.group(1)


def password_of_ledger(installation: Installation) -> str:
    """Return the password of the role that ``setup`` has made, which is nowhere but in Airflow's connection."""
    with installation.open("airflow") as link:
        ((kept,),) = link.execute("SELECT password FROM connection WHERE conn_id = %s", (LEDGER,)).fetchall()
    return Fernet(fernet_key(installation)).decrypt(kept).decode()
