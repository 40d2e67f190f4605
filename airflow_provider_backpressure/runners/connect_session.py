"""Sessions of Spark Connect: where a server is, and how a session begins there."""

import logging
import os
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from pyspark import __version__ as CLIENT
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient
from pyspark.sql.connect.session import SparkSession

from airflow_provider_backpressure.exceptions import InvalidDeclaration, RunnerUnavailable
from airflow_provider_backpressure.runners.tried_versions import check_server
from airflow_provider_backpressure.spark.connect_client import hang_up, knock, let_go, open_session

log = logging.getLogger(__name__)

USER = "backpressure"
"""User id where the address names none: with the session's id it is all that another process needs."""
SHARED = {"spark.sql.artifact.isolation.enabled": "false"}
"""Of a session that shares the existing Python workers. It must get no files: all sessions would see them."""


def is_session_id(text: str) -> bool:
    """Whether Spark Connect may know a session of this id: it takes UUIDs only."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


class Address:
    """Where a Spark Connect server is, ``sc://host:port/;token=…``. ``str()`` leaves the parameters out."""

    def __init__(self, remote: str) -> None:
        """Read the address; ``InvalidDeclaration`` where it is none."""
        self._remote = remote
        try:
            self.host = self._channel().host.strip("[]")
            self.port = int(self._channel().endpoint.rpartition(":")[2])
        except (PySparkException, ValueError):
            # Their errors quote the address with its token, so the cause is not kept.
            raise InvalidDeclaration(
                f"{self} is not the address of a Spark Connect server: it must read sc://host:port."
            ) from None

    def __str__(self) -> str:
        """Return scheme, host and port."""
        return self._remote.partition(";")[0].rstrip("/")

    def begin(self, session_id: str) -> SparkSession:
        """Return a new session of this id (a UUID), which shares its Python workers with all others begun so.

        Spark would else start a daemon of workers for it, and keep that when the session is over, for as long as the
        executor lives (SPARK-54055, seen on 4.1.3). Whether it does so is settled before a session takes its first
        setting; a clone is settled by what was set before. Where client (before 4.1) or server makes no clones the
        session is as any other.
        Raises ``RunnerUnavailable`` where nothing listens, ``RunnerRefused`` where the server is too old.
        """
        clones = hasattr(SparkConnectClient, "clone")
        model = self.open(str(uuid.uuid4()) if clones else session_id)
        try:
            # First: a server of Spark 3 lacks what follows, and answers with errors that do not say so.
            check_server(model.version, client=CLIENT, where=str(self))
            if not clones:
                return model
            for name, value in SHARED.items():
                model.conf.set(name, value)
            try:
                clone = model.client.clone(session_id)
                let_go(clone)
                hang_up(clone)
            except grpc.RpcError as error:
                reason = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
                log.warning("Spark Connect at %s makes no clone of a session (%s): workers will stay.", self, reason)
            model.client.release_session()
        except BaseException:
            hang_up(model.client)
            raise
        hang_up(model.client)
        return self.open(session_id)

    def open(self, session_id: str) -> SparkSession:
        """Return a session of this id (a UUID), also one that another process began.

        Raises ``RunnerUnavailable`` where nothing listens; nothing is asked of the server yet.
        """
        if not is_session_id(session_id):
            raise InvalidDeclaration(f"The session id {session_id!r} is not a UUID.")
        self._knock()
        channel = self._channel()
        channel.set(channel.PARAM_SESSION_ID, session_id)
        channel.set(channel.PARAM_USER_ID, channel.userId or USER)
        # As PySpark's own builder does: functions and types that a transform uses are then those of Spark Connect.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        # Given up trying, PySpark both warns and raises; the error is enough.
        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
        return open_session(channel)

    def _channel(self) -> DefaultChannelBuilder:
        return DefaultChannelBuilder(self._remote)

    def _knock(self) -> None:
        try:
            knock(self.host, self.port)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise RunnerUnavailable(f"Spark Connect at {self} cannot be reached: {reason}.") from error


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Let this be the thread's session: PySpark asks for it where a transform names a type by its text.

    PySpark sets it in the thread that opens a session only, keeps one there that was closed, and has no public setter.
    """
    local = SparkSession._active_session
    before = getattr(local, "session", None)
    local.session = session
    try:
        yield
    finally:
        local.session = before


@contextmanager
def tag_jobs(session: SparkSession, tag: str) -> Iterator[None]:
    """Give what this thread submits the tag by which it can be interrupted."""
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)
