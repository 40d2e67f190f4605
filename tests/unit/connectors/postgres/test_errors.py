"""psycopg's errors become one sentence of the caller's own errors."""

from contextlib import AbstractContextManager

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_backpressure.connectors.postgres.errors import Errors, is_held_up
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.exceptions import SourceRefused, SourceUnavailable

ENDPOINT = Endpoint(conn_id="shop_db", host="db", port=5432, database="shop", user="reader", password="s3cret")
ERRORS = Errors(refused=SourceRefused, unavailable=SourceUnavailable)
DOOR = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: '
PLACE = "db:5432/shop (connection shop_db)"


def translated() -> AbstractContextManager[None]:
    return ERRORS.translate_errors(ENDPOINT)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("the connection is lost"),
        psycopg.InterfaceError("the connection is closed"),
        pg.AdminShutdown("terminating connection"),
        pg.TooManyConnections("sorry, too many clients already"),
        pg.DeadlockDetected("deadlock detected"),
        pg.LockNotAvailable("canceling statement due to lock timeout"),
        pg.QueryCanceled("canceling statement due to user request"),
        pg.DiskFull("No space left on device"),
    ],
)
def test_what_may_pass_is_transient(error: psycopg.Error) -> None:
    with pytest.raises(SourceUnavailable, match=r"db:5432/shop \(connection shop_db\)") as raised, translated():
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "held_up"),
    [
        (pg.LockNotAvailable("canceling statement due to lock timeout"), True),
        (pg.DeadlockDetected("deadlock detected"), True),
        (pg.QueryCanceled("canceling statement due to user request"), True),
        (pg.DiskFull("No space left on device"), False),
        (pg.AdminShutdown("terminating connection"), False),
        (psycopg.OperationalError("the connection is lost"), False),
        (psycopg.InterfaceError("the connection is closed"), False),
    ],
)
def test_a_lock_is_no_error_of_the_server(error: psycopg.Error, held_up: bool) -> None:
    with pytest.raises(SourceUnavailable) as raised, translated():
        raise error
    assert is_held_up(raised.value) is held_up
    assert not is_held_up(SourceUnavailable("The source does not answer."))


@pytest.mark.parametrize("error", [pg.InsufficientPrivilege("permission denied"), pg.UndefinedColumn("no column x")])
def test_what_stays_wrong_is_terminal(error: psycopg.Error) -> None:
    with pytest.raises(SourceRefused, match="refused: "), translated():
        raise error


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (
            f'{DOOR}FATAL:  password authentication failed for user "reader"',
            SourceRefused,
            f'PostgreSQL at {PLACE} does not let reader in: password authentication failed for user "reader".',
        ),
        (
            f"{DOOR}Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
            SourceUnavailable,
            f"PostgreSQL at {PLACE} cannot be reached: Connection refused.",
        ),
        (
            f"{DOOR}SSL error: certificate verify failed",
            SourceRefused,
            f"PostgreSQL at {PLACE} does not let reader in: SSL error: certificate verify failed.",
        ),
    ],
)
def test_the_door_speaks_without_a_code(words: str, kind: type[Exception], sentence: str) -> None:
    answer = ERRORS.at_the_door(psycopg.OperationalError(words), ENDPOINT)
    assert type(answer) is kind
    assert str(answer) == sentence


def test_a_bad_option_names_the_connection() -> None:
    answer = ERRORS.at_the_door(psycopg.ProgrammingError('invalid connection option "foo"\n'), ENDPOINT)
    assert str(answer) == 'The connection shop_db has an option that cannot be used: invalid connection option "foo".'
