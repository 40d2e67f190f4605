"""What ``doctor`` makes of Spark's own pages: whose login is shown there."""

import json

import pytest

from airflow_provider_backpressure.cli.login_leaks import (
    ENVIRONMENT,
    PAGES,
    REST,
    find_shown_logins,
    judge_pages,
    make_secret,
    read_pages,
)
from airflow_provider_backpressure.exceptions import RunnerRefused, RunnerUnavailable
from tests.unit.connectors.kafka.source.test_schema_versions import answering

pytestmark = pytest.mark.statement("K5")

HIDDEN = "*********(redacted)"
SETTINGS = {
    "spark.sql.catalog.erp": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
    "spark.sql.catalog.erp.url": "jdbc:mysql://erp.example.com:3306/?useSSL=true",
    "spark.sql.catalog.erp.user": "reader",
    "spark.sql.catalog.erp.password": HIDDEN,
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.token-refresh-enabled": "true",
    "spark.sql.catalog.lake.client.credentials-provider": "com.example.Provider",
    "spark.redaction.regex": "(?i)secret|password|token",
}


def make_pages(**settings: str) -> dict[str, str]:
    """Return pages that show the session ``s1`` and these settings."""
    environment = json.dumps({"sparkProperties": [*(SETTINGS | settings).items()]})
    return {ENVIRONMENT: environment, "jobs": '[{"jobTags": ["s1"]}]', "SQL/": "<html></html>"}


def test_pages_without_a_login_are_well() -> None:
    """K5: it says how many pages there were, and whose logins are not shown."""
    assert list(judge_pages(make_pages(), make_secret())) == [
        "A login that was sent with a job is on none of Spark's 3 pages.",
        "They show no login of the catalogs erp, lake.",
    ]
    (alone,) = judge_pages({ENVIRONMENT: '{"sparkProperties": []}'}, make_secret())
    assert "none of Spark's 1 pages" in alone


def test_a_page_that_shows_the_canary_is_named_and_the_canary_is_not() -> None:
    """K5: wherever it stands on the page."""
    secret = make_secret()
    pages = {**make_pages(), "SQL/": f"<td>LocalRelation [password={secret}]</td>"}
    with pytest.raises(RunnerRefused, match=r"on its pages SQL/: close") as raised:
        list(judge_pages(pages, secret))
    assert secret not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.catalog.erp.url", "jdbc:mysql://reader:hunter2@erp.example.com/"),
        ("spark.sql.catalog.erp.url", "jdbc:sqlserver://erp:1433;user=reader;password=hunter2;encrypt=true"),
        ("spark.sql.catalog.erp.url", "jdbc:postgresql://erp/shop?user=reader&password=hunter2"),
        ("spark.sql.catalog.lake.credential", "client:hunter2"),
        ("spark.sql.catalog.lake.s3.secret-access-key", "hunter2"),
        ("spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net", "hunter2"),
        ("spark.hadoop.javax.jdo.option.ConnectionPassword", "hunter2"),
    ],
)
def test_settings_that_show_a_login_of_the_cluster_are_named(name: str, value: str) -> None:
    """K5: by their names alone, and none where Spark shows a placeholder."""
    found = judge_pages(make_pages(**{name: value}), make_secret())
    assert next(found).startswith("A login that was sent")
    with pytest.raises(RunnerRefused, match=r"spark\.redaction\.regex") as raised:
        next(found)
    assert name in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert find_shown_logins({name: HIDDEN}) == []
    assert find_shown_logins({name: ""}) == []


def test_all_pages_are_read_and_one_that_does_not_answer_is_said() -> None:
    """Those of the application, and those below the root."""
    app = "/api/v1/applications/app-1"
    answers = {f"/api{app}/{path}": (200, {"at": path}) for path in REST}
    answers |= {f"/api/{path}": (200, {"at": path}) for path in PAGES}
    with answering(answers, []) as place:
        found = read_pages(f"{place.host}{app}")
        assert {path: json.loads(text)["at"] for path, text in found.items()} == {path: path for path in REST + PAGES}
        with pytest.raises(RunnerUnavailable, match="A page of Spark at"):
            read_pages(f"{place.host}/api/v1/applications/another")
