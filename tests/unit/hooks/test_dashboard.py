"""The dashboard, the alert rules and the mappings name the figures that are sent, and no others."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from airflow_provider_backpressure.hooks import metrics
from airflow_provider_backpressure.testing import MemoryLedger
from tests.conformance.ledger.support import planned

FOLDER = Path(__file__).parents[3] / "docs" / "prometheus"
NAME = re.compile(r"\bbackpressure_([a-z_]+)")


@pytest.fixture(scope="module")
def sent() -> set[str]:
    """The figures that are sent."""
    ledger = MemoryLedger(now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    return set(metrics.figures(ledger, ledger.hydration(planned(ledger)[0]), None))


def expressions() -> list[str]:
    board = json.loads((FOLDER / "dashboard.json").read_text())
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    asked = [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    return [*asked, *(target["expr"] for panel in board["panels"] for target in panel["targets"])] + [
        rule["expr"] for rule in rules
    ]


@pytest.mark.statement("C5")
def test_dashboard_and_alerts_ask_for_what_is_sent(sent):
    asked = {name for each in expressions() for name in NAME.findall(each)}
    assert asked
    assert asked <= sent


def as_python(regex: str) -> str:
    """Return a regular expression of Prometheus, which matches whole texts, as Python has it."""
    return f"^(?:{regex})$"


def test_the_mappings_make_these_names_of_what_is_sent(sent, monkeypatch):
    """Of each name that Airflow is given, by StatsD and by OpenTelemetry."""
    ledger, given = MemoryLedger(), []
    hydration = ledger.hydration(planned(ledger)[0])
    monkeypatch.setattr(metrics, "send_gauge", lambda name, value, tags: given.append(f"airflow.{name}"))
    metrics.send(ledger, hydration, None)
    assert len(given) > 5
    (mapping,) = yaml.safe_load((FOLDER / "statsd-mapping.yaml").read_text())["mappings"]
    statsd = re.compile(as_python(re.escape(mapping["match"]).replace(r"\*", "([^.]*)")))
    rules = yaml.safe_load((FOLDER / "otel-relabel.yaml").read_text())["metric_relabel_configs"]
    for name in given:
        target, figure = name.split(".")[-2:]
        match = statsd.match(name)
        assert match is not None
        assert (match[1], mapping["name"].replace("${2}", match[2])) == (target, f"backpressure_{figure}")
        for rule in rules:
            found = re.match(as_python(rule["regex"]), name.replace(".", "_"))
            assert found is not None
            assert found.groups() == (target, figure)
    assert set(rules[0]["regex"].rpartition("(")[2].rstrip(")").split("|")) == sent
