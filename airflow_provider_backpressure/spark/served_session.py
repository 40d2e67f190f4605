"""An application that answers questions: its driver serves Spark Connect on this host until nobody asks any more.

So what a plan asks of a cluster's catalogs is asked in the same way where ranges run by spark-submit. The process that
has submitted it holds a lock, which the system takes from it when it dies, however it does.
"""

import fcntl
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow_provider_backpressure.core.snapshot.application_request import HELD, Request
from airflow_provider_backpressure.exceptions import RunnerRefused

PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
GUARD = "org.apache.spark.sql.connect.service.PreSharedKeyAuthenticationInterceptor"
"""What refuses callers without the token; Spark has it where it has :data:`PLUGIN`, but for some early versions."""
PLUGINS = "spark.plugins"
SERVED = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.ui.enabled": "false",
}


def serve_session(request: Request, folder: Path, say: Callable[[Mapping[str, Any]], None]) -> None:
    """Say by ``port`` where the session is served, and serve it until the lock in the folder is free.

    Callers need the token of the environment. ``RunnerRefused`` where this Spark cannot serve one, or not only to them.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # The JVM runs by then, and shows the properties that spark-submit was given.
    SparkContext._ensure_initialized()
    _check_classes(SparkContext._jvm)
    plugins = [name for name in (SparkConf().get(PLUGINS) or "").split(",") if name]
    builder = SparkSession.builder.master(str(request.master))
    for name, value in {**SERVED, PLUGINS: ",".join([*plugins, PLUGIN])}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        service = getattr(session.sparkContext._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        say({"port": getattr(service, "MODULE$").localPort()})
        wait_until_free(folder / HELD)
    finally:
        session.stop()


def _check_classes(jvm: Any) -> None:
    """Raise ``RunnerRefused`` where Spark lacks what serves and guards a session."""
    errors = import_module("py4j.protocol")
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        for name in (PLUGIN, GUARD):
            loader.loadClass(name)
    except errors.Py4JJavaError:
        raise RunnerRefused(
            "Tables of the cluster's catalogs are planned by a session of Spark Connect, which the Spark of "
            "spark-submit on this host does not have: use Spark 4.1 there, or a connection of type spark_connect."
        ) from None


def wait_until_free(path: Path) -> None:
    """Wait until nobody else holds the file, or it is gone."""
    try:
        with path.open("r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
    except FileNotFoundError:
        return
