"""The section of Airflow's configuration, where no test of what it configures looks at it."""

from collections.abc import Iterator

import pytest

from airflow_provider_backpressure import settings
from airflow_provider_backpressure.exceptions import InvalidDeclaration


@pytest.fixture(autouse=True)
def another_process() -> Iterator[None]:
    """What a process keeps is of this test alone."""
    settings.environment.cache_clear()
    yield
    settings.environment.cache_clear()


@pytest.mark.parametrize("name", ["default", "prod-2.eu_1"])
def test_an_environment_names_this_airflow(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AIRFLOW__BACKPRESSURE__ENVIRONMENT", name)
    assert settings.environment() == name


@pytest.mark.parametrize("name", ["", "a/b", "-a", "ä"])
def test_a_name_that_could_not_stand_in_an_address_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("AIRFLOW__BACKPRESSURE__ENVIRONMENT", name)
    with pytest.raises(InvalidDeclaration, match="letters, digits, dots, dashes and underscores"):
        settings.environment()
