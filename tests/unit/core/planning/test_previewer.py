"""What plans of one session know of the executors."""

import threading
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_backpressure.core.planning.previewer import Probes
from airflow_provider_backpressure.core.ports import ExecutorEnvironment
from airflow_provider_backpressure.testing import MemoryRunner, MemorySink, MemorySource


def test_plans_of_one_session_need_one_probe(monkeypatch):
    """However many ask at once; other modules are looked for by another."""
    runner, asked = MemoryRunner(source=MemorySource(keys=[]), sink=MemorySink()), []
    begun = threading.Event()

    def probe(modules=()):
        asked.append(tuple(modules))
        begun.wait(0.05)
        return ExecutorEnvironment(python="3.11", modules=dict.fromkeys(modules, "1"))

    monkeypatch.setattr(runner, "probe", probe)
    probes = Probes()
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: probes.find(runner, ["psycopg"]), range(8))]
    assert {tuple(one.modules) for one in found} == {("psycopg",)}
    probes.find(runner, ["pyarrow"])
    assert asked == [("psycopg",), ("pyarrow",)]
