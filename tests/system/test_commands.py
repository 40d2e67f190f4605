"""The commands on a real installation: what they print, and their exit codes."""

import json

import pytest

from airflow_provider_backpressure.ledger.revision import VERSION_TABLE
from airflow_provider_backpressure.ledger.role_grants import TABLES
from tests.system.installation import Installation

pytestmark = pytest.mark.system


def test_setup_has_made_a_role_that_may_use_the_ledger_only(installation: Installation):
    """A second ``setup`` finds everything; the role reaches our tables and none of Airflow's."""
    again = installation.cli("setup")
    assert (again.returncode, again.stderr) == (0, "")
    assert "is there and works" in again.stdout
    with installation.open("airflow") as link:
        allowed = {
            name
            for (name,) in link.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace "
                "AND has_table_privilege('backpressure', oid, 'SELECT')"
            )
        }
    assert allowed == {*TABLES, VERSION_TABLE}


def test_plan_shows_without_writing(installation: Installation):
    shown = installation.cli("plan", "slow", "--output", "json")
    assert shown.returncode == 0, shown.stderr
    (facts,) = json.loads(shown.stdout)
    assert (facts["rows"], facts["range_rows"], facts["ranges"], facts["path"]) == (20000, 800, 25, "copy")


def test_doctor_looks_at_everything(installation: Installation):
    """Databases and cluster that exist are well; a port where nothing listens is named with what to do."""
    well = installation.cli(
        "doctor", "--conn-id", "shop_db", "--spark-conn-id", "spark_connect_default", "--output", "json"
    )
    findings = json.loads(well.stdout)
    assert (well.returncode, {one["result"] for one in findings}) == (0, {"ok"}), findings
    assert any("The executors reach it" in one["finding"] for one in findings)
    ill = installation.cli("doctor", "--conn-id", "shop_db", "--spark-conn-id", "no_spark", "--output", "json")
    assert ill.returncode == 1
    assert any("cannot be reached" in one["finding"] for one in json.loads(ill.stdout) if one["result"] == "problem")


@pytest.mark.long
def test_wrong_use_and_failure_have_their_codes(installation: Installation):
    unknown = installation.cli("status", "raw.nowhere")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "There is no hydration 'raw.nowhere'" in unknown.stderr
    failed = installation.cli("status", "--backpressure-conn-id", "ledger_without_tables")
    assert failed.returncode == 1
    assert "run `airflow db migrate`" in failed.stderr
    assert installation.cli("ranges").returncode == 2


@pytest.mark.long
def test_verify_and_ranges_of_a_hydration(installation: Installation):
    """By the target's table: its checksums are those of the markers, and every range is listed."""
    assert installation.first("postgres_hydrate").ends() == "success"
    verified = installation.cli("verify", "raw.lineitem", "--output", "json")
    assert (verified.returncode, json.loads(verified.stdout)[0]["equal"]) == (0, True)
    listed = json.loads(installation.cli("ranges", "raw.lineitem", "--state", "committed", "--output", "json").stdout)
    assert [one["seq"] for one in listed] == [0, 1, 2]
