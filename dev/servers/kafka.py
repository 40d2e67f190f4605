"""One Kafka broker that is its own controller (KRaft)."""

import base64
import shutil
import signal
import socket
import struct
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dev.downloads import java
from dev.servers import process, spark
from dev.servers.server import HOST, Kind, Launch, Options, Place, Server, ServiceError

SMALL = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
}
USER = "backpressure"
LOGGING = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
"""


class Kafka(Kind):
    """Kafka; a write creates its topic. One listener lets all in, one asks for a login."""

    ports = ("port", "controller_port", "login_port")
    stop_signal = signal.SIGTERM
    patience = 8.0
    deadline = 120.0

    def chosen(self, options: Options) -> dict[str, Any]:
        """Further settings."""
        return {"settings": dict(options.settings.get("kafka", {}))}

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Fetch the jars, format the log folder once, and write the settings."""
        spark.need_java()
        classpath = ":".join(str(jar) for jar in place.downloads.group("kafka"))
        logging = place.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        command = [java(), *SMALL, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath]
        data, properties = place.folder / "data", place.folder / "server.properties"
        if not data.exists():
            _format(command, place, ports)
        password = place.password()
        _write(properties, data, ports, {**_login(ports, password), **options.settings.get("kafka", {})})
        return Launch(
            command=[*command, "kafka.Kafka", str(properties)],
            cwd=place.folder,
            url=f"{HOST}:{ports['port']}",
            login=USER,
            password=password,
        )

    def answers(self, server: Server) -> bool:
        """Whether the cluster's metadata names a broker: it does once the broker takes requests."""
        try:
            return _brokers(server.port) > 0
        except (OSError, struct.error):
            return False


def _login(ports: Mapping[str, int], password: str) -> dict[str, str]:
    """Return the settings of a further listener, which asks for a login (SASL, PLAIN)."""
    broker, login = f"{HOST}:{ports['port']}", f"{HOST}:{ports['login_port']}"
    return {
        "listeners": f"PLAINTEXT://{broker},LOGIN://{login},CONTROLLER://{HOST}:{ports['controller_port']}",
        "advertised.listeners": f"PLAINTEXT://{broker},LOGIN://{login}",
        "listener.security.protocol.map": f"{SETTINGS['listener.security.protocol.map']},LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{password}";'
        ),
    }


def _format(command: list[str], place: Place, ports: Mapping[str, int]) -> None:
    """Make the data folder, complete or not at all."""
    scratch, properties = place.folder / "format", place.folder / "format.properties"
    shutil.rmtree(scratch, ignore_errors=True)
    _write(properties, scratch, ports, {})
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    tool = [*command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(properties)]
    done = process.run(tool, mark=place.mark, cwd=place.folder)
    if done.returncode != 0:
        raise ServiceError(f"Kafka's log folder could not be formatted:\n{done.stdout[-800:]}{done.stderr[-800:]}")
    scratch.rename(place.folder / "data")


def _write(file: Path, data: Path, ports: Mapping[str, int], further: Mapping[str, str]) -> None:
    broker, controller = f"{HOST}:{ports['port']}", f"{HOST}:{ports['controller_port']}"
    settings = {
        **SETTINGS,
        "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{broker}",
        "controller.quorum.voters": f"1@{controller}",
        "log.dirs": str(data),
        **further,
    }
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _brokers(port: int) -> int:
    """Ask for the metadata of no topic (request 3, version 4) and return how many brokers the answer names."""
    request = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">i?", 0, False)
    with socket.create_connection((HOST, port), timeout=2.0) as client:
        client.sendall(struct.pack(">i", len(request)) + request)
        answer = b""
        while len(answer) < 16 and (more := client.recv(4096)):
            answer += more
    _size, _correlation, _throttled, brokers = struct.unpack(">iiii", answer[:16])
    return int(brokers)
