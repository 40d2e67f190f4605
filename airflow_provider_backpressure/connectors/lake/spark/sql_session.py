"""The planning side's own session of Spark Connect: it runs SQL only, and no task.

Where ranges run by spark-submit there is no server. Then an application on this host serves the session.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import grpc
from pyspark import __version__ as PYSPARK
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient
from pyspark.sql.connect.session import SparkSession

from airflow_provider_backpressure.core.endpoints import Endpoint, SessionServer
from airflow_provider_backpressure.exceptions import InvalidDeclaration, RunnerUnavailable, SinkRefused, SinkUnavailable
from airflow_provider_backpressure.spark.connect_client import hang_up, knock, let_go, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as AnySession

IN_MEMORY = "in-memory"
"""What Spark's session catalog is unless it is set to be Hive's metastore."""
SESSION_CATALOG, OWN_CATALOGS = "spark_catalog", ("", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
"""The session catalog, and its classes that find tables by Spark's own one."""
DIRECT: list[tuple[str, Any]] = [("grpc.enable_http_proxy", 0)]
"""Options of a channel to this host, whatever proxy the environment names."""
_TOO_OLD = (
    "A commit with settings of its own needs a copy of the session, which Spark Connect makes since 4.1, but {}: "
    "upgrade it."
)


class SqlSession:
    """Opens at the first use. May be shared by threads.

    ``endpoint``: its password is the whole address. Where it has none, as that of a connection for spark-submit, it
    serves a session on this host.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Open nothing yet."""
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._server: SessionServer | None = None

    @property
    def address(self) -> str:
        """Where the cluster is, fit for a sentence: scheme, host and port of a server, or the host of a master."""
        return self._endpoint.password.partition(";")[0].rstrip("/") or self._endpoint.host

    def get(self) -> "AnySession":
        """Return the session; ``SinkUnavailable`` where nothing listens."""
        with self._lock:
            if self._session is None:
                self._session = self._open()
            return cast("AnySession", self._session)

    def check_catalog(self, name: str) -> None:
        """Raise ``SinkRefused`` where a table would be in the memory of one application, and others write it."""
        catalog = name.partition(".")[0]
        if self._endpoint.serve is None or catalog != SESSION_CATALOG:
            return
        conf = self.get().conf
        kept, own = conf.get("spark.sql.catalogImplementation"), conf.get(f"spark.sql.catalog.{SESSION_CATALOG}", "")
        if kept == IN_MEMORY and own in OWN_CATALOGS:
            raise SinkRefused(
                f"{name} would be known to one application alone, and each range is another one: set "
                "spark.sql.catalogImplementation to hive in conf of the Spark connection, with a metastore that all "
                "applications reach, or name a table of another catalog."
            )

    def close(self) -> None:
        """End it on the server; idempotent."""
        with self._lock:
            session, self._session = self._session, None
            server, self._server = self._server, None
        if session is not None:
            # Where it does not answer, the server ends it by itself an hour later.
            with suppress(PySparkException):
                session.client.release_session()
            hang_up(session.client)
        if server is not None:
            server.close()

    def forget(self) -> None:
        """Let go of a session that may be gone, without a word to the server: the next question opens another one."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            hang_up(session.client)

    def _open(self) -> SparkSession:
        remote, options = self._endpoint.password, list[tuple[str, Any]]()
        if self._endpoint.serve is not None:
            remote, options = self._serve(self._endpoint.serve), DIRECT
        try:
            channel = DefaultChannelBuilder(remote, options)
            host, _, port = str(channel.endpoint).rpartition(":")
            knock(host.strip("[]"), int(port))
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise SinkUnavailable(f"Spark Connect at {self.address} cannot be reached: {reason}.") from error
        except (PySparkException, ValueError):
            # Their errors quote the address with its token, so the cause is not kept.
            raise InvalidDeclaration(f"{self.address} is not the address of a Spark Connect server.") from None
        channel.set(channel.PARAM_SESSION_ID, str(uuid.uuid4()))
        channel.set(channel.PARAM_USER_ID, channel.userId or "backpressure")
        return open_session(channel)

    def _serve(self, serve: Callable[[], SessionServer]) -> str:
        """Return the address of this host's server, which is started where it does not run (any more)."""
        self._server = self._server or serve()
        try:
            return self._server.find_address()
        except RunnerUnavailable as error:
            raise SinkUnavailable(str(error)) from error


@contextmanager
def clone_on_server(session: "AnySession") -> Iterator["AnySession"]:
    """Do what :func:`.connect_or_classic_session.clone_session` says, over Spark Connect."""
    if not hasattr(SparkConnectClient, "clone"):
        raise SinkRefused(_TOO_OLD.format(f"the client in Airflow is PySpark {PYSPARK}"))
    try:
        client = cast("SparkSession", session).client.clone(str(uuid.uuid4()))
    except grpc.RpcError as error:
        reason = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
        if reason == "UNIMPLEMENTED":
            raise SinkRefused(_TOO_OLD.format(f"the server runs Spark {session.version}")) from None
        raise SinkUnavailable(f"Spark Connect makes no copy of a session for a merge: {reason}.") from None
    let_go(client)
    hang_up(client)
    clone = open_session(cast("DefaultChannelBuilder", client._builder))
    try:
        yield cast("AnySession", clone)
    finally:
        with suppress(PySparkException):
            clone.client.release_session()
        hang_up(clone.client)
