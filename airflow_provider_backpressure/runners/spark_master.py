"""Where spark-submit sends applications, and what may be asked of such a place."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_backpressure.exceptions import InvalidDeclaration, RunnerRefused, RunnerUnavailable
from airflow_provider_backpressure.runners.executor_memory import limit_bytes

CONNECT_SECONDS = 5.0
PYTHON, DRIVER_PYTHON = "spark.pyspark.python", "spark.pyspark.driver.python"
CLIENT, CLUSTER = "client", "cluster"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A master with its deploy mode. ``RunnerRefused`` where ranges cannot be run that way."""

    master: str
    """``local[2]``, ``spark://host:port``, ``yarn``, ``k8s://…``."""
    deploy_mode: str = CLIENT
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's properties as the connection has them; shown by Spark, so never a secret."""
    namespace: str = "default"
    """Of Kubernetes."""
    secrets_file: str | None = None
    """File with the logins where the driver runs, in cluster mode."""

    def __post_init__(self) -> None:
        """Refuse what could only fail later."""
        if self.deploy_mode not in (CLIENT, CLUSTER):
            raise InvalidDeclaration(f"The deploy mode must be {CLIENT} or {CLUSTER}, not {self.deploy_mode!r}.")
        if self.cluster and not (self.yarn or self.kubernetes):
            raise RunnerRefused(
                f"Spark runs no Python application in cluster mode on {self.master}: use deploy-mode {CLIENT}."
            )
        if self.cluster and not self.secrets_file:
            raise RunnerRefused(
                f"In cluster mode on {self.master} there is no way to pass a password to the driver: use deploy-mode "
                f"{CLIENT}, or name by the extra secrets_file a file with the logins that is mounted where it runs."
            )
        try:
            self.limit()
        except ValueError as error:
            raise InvalidDeclaration(f"Spark's memory settings cannot be read: {error}") from error

    @property
    def local(self) -> bool:
        """Whether driver and tasks are one process tree on this host."""
        return self.master.startswith("local")

    @property
    def yarn(self) -> bool:
        """Whether YARN runs them."""
        return self.master.startswith("yarn")

    @property
    def kubernetes(self) -> bool:
        """Whether Kubernetes runs them."""
        return self.master.startswith("k8s")

    @property
    def cluster(self) -> bool:
        """Whether drivers run on the cluster, where no file of this host is seen."""
        return self.deploy_mode == CLUSTER

    @property
    def own_python(self) -> bool:
        """Whether drivers run by this very Python; executors may run by another of the same minor version."""
        return not self.cluster and DRIVER_PYTHON not in self.conf

    def limit(self) -> int:
        """Return what one executor may take, in bytes."""
        return limit_bytes({"spark.master": self.master, **self.conf})

    def marks(self, name: str) -> dict[str, str]:
        """Return the properties by which an application can be found again on its cluster, beside its name."""
        if self.yarn:
            return {"spark.yarn.tags": ",".join(filter(None, [self.conf.get("spark.yarn.tags"), name]))}
        if self.kubernetes:
            label = safe(name)
            pod = {"spark.kubernetes.driver.pod.name": pod_name(name)} if self.cluster else {}
            return {
                "spark.kubernetes.driver.label.backpressure-attempt": label,
                "spark.kubernetes.executor.label.backpressure-attempt": label,
                **pod,
            }
        return {}

    def knock(self) -> None:
        """Raise ``RunnerUnavailable`` where no standalone master listens: Spark itself would try for a minute."""
        if not self.master.startswith("spark://"):
            return
        reasons = [_knock(address) for address in self.master.removeprefix("spark://").split(",")]
        if all(reasons):
            raise RunnerUnavailable(f"The Spark master at {self.master} cannot be reached: {reasons[0]}.")


def safe(name: str) -> str:
    """Return an attempt's tag as a folder or a label may be called."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", name)


def pod_name(name: str) -> str:
    """Return the name of an attempt's driver pod."""
    return f"{safe(name).lower().replace('.', '-')}-driver"


def _knock(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return ""
