"""A relay between Spark's client and a real Spark Connect server, which answers some calls otherwise."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
from pyspark.sql.connect.proto import base_pb2

SERVICE = "/spark.connect.SparkConnectService/"
PYTHON_DIFFERS = """Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 3305, in main
    check_python_version(infile)
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: \
{worker} than that in driver: {client}, PySpark cannot run with different minor versions.
Please check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are correctly set.
"""
"""What Spark 4.1.3 answers to a job in Python, with the status INTERNAL."""
Forward = Callable[[], Iterator[bytes]]
"""Asks the real server."""
Answer = Callable[[bytes, grpc.ServicerContext, Forward], Iterable[bytes]]
"""Answers a call of a method."""


def version(spark: str) -> Answer:
    """Return what answers ``AnalyzePlan`` with this version of Spark where one is asked for."""

    def answer(request: bytes, context: grpc.ServicerContext, forward: Forward) -> Iterator[bytes]:
        for reply in forward():
            read = base_pb2.AnalyzePlanResponse.FromString(reply)
            if read.HasField("spark_version"):
                read.spark_version.version = spark
            yield read.SerializeToString()

    return answer


def unknown(request: bytes, context: grpc.ServicerContext, forward: Forward) -> NoReturn:
    """Answer as a server does that lacks the method."""
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found")


def other_python(worker: str, client: str) -> Answer:
    """Return what answers ``ExecutePlan`` as workers of this Python do where the client's is another."""

    def answer(request: bytes, context: grpc.ServicerContext, forward: Forward) -> NoReturn:
        context.abort(grpc.StatusCode.INTERNAL, PYTHON_DIFFERS.format(worker=worker, client=client))

    return answer


class _Relay(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.Channel, answers: dict[str, Answer]) -> None:
        self._channel, self._answers = channel, answers

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        ask = self._channel.stream_stream(details.method)
        answer = self._answers.get(details.method.removeprefix(SERVICE), lambda request, context, forward: forward())

        def handle(requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            sent = list(requests)
            call: Any = None

            def forward() -> Iterator[bytes]:
                nonlocal call
                call = ask(iter(sent))
                return call

            try:
                yield from answer(sent[0], context, forward)
            except grpc.RpcError:
                context.set_trailing_metadata(call.trailing_metadata())
                context.abort(call.code(), call.details())

        return grpc.stream_stream_rpc_method_handler(handle)


@contextmanager
def relay(address: str, answers: dict[str, Answer]) -> Iterator[str]:
    """Give the address of a relay to a server (both ``sc://host:port``). ``answers``: by the method's name."""
    with grpc.insecure_channel(address.removeprefix("sc://")) as channel:
        server = grpc.server(ThreadPoolExecutor(16))
        server.add_generic_rpc_handlers([_Relay(channel, answers)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
