"""A Spark Connect server from the installed PySpark."""

import signal
from collections.abc import Mapping
from typing import Any

from dev.servers import ports as tcp
from dev.servers import spark
from dev.servers.server import HOST, Kind, Launch, Options, Place, Server


class Connect(Kind):
    """Spark Connect, with its executors inside or on the standalone master."""

    ports = ("port", "ui_port")
    stop_signal = signal.SIGTERM
    patience = 8.0
    deadline = 180.0

    def chosen(self, options: Options) -> dict[str, Any]:
        """Interpreter, master, memory, connectors and configuration."""
        return {
            "spark_python": options.spark_python,
            "master": options.master,
            "driver_memory": options.driver_memory,
            "jars": list(options.jars),
            "spark_conf": dict(options.spark_conf),
        }

    def prepare(self, place: Place, options: Options, ports: Mapping[str, int]) -> Launch:
        """Fetch the connectors and write the configuration."""
        scratch = place.folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        settings = {
            **spark.MEASURED,
            "spark.master": options.master,
            "spark.app.name": place.name,
            "spark.driver.memory": options.driver_memory,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(ports["port"]),
            "spark.ui.port": str(ports["ui_port"]),
            "spark.port.maxRetries": "0",  # another port than the one we report helps nobody
            "spark.ui.showConsoleProgress": "false",
            "spark.eventLog.enabled": "false",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(place.folder / "warehouse"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.redaction.string.regex": spark.SECRETS,
        }
        if files := spark.jars(place.downloads, options.jars):
            settings["spark.jars"] = ",".join(files)
        if not options.master.startswith("local"):
            settings |= {"spark.executor.memory": options.worker_memory}
        properties = place.folder / "spark.conf"
        spark.write_properties(properties, {**settings, **options.spark_conf})
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        submit = [str(spark.home(options.spark_python) / "bin" / "spark-submit"), "--properties-file", str(properties)]
        return Launch(
            command=[*submit, "--class", main, "spark-internal"],
            cwd=place.folder,
            environment={**spark.environment(options.spark_python), "SPARK_LOCAL_DIRS": str(scratch)},
            url=f"sc://{HOST}:{ports['port']}",
        )

    def answers(self, server: Server) -> bool:
        """Whether the port accepts: Spark opens it last."""
        return tcp.accepts(server.port)
