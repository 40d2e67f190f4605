"""Code that travels with the function of a job."""

import json
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from airflow_provider_backpressure.runners.code_shipping import cargo
from airflow_provider_backpressure.spark.code_loading import aboard, carry_code
from airflow_provider_backpressure.spark.task import environment

WORKER = """
import pickle, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
try:
    import airflow_provider_backpressure
    raise SystemExit("This process has a package of ours already.")
except ModuleNotFoundError:
    pass
with open(sys.argv[1], "rb") as file:
    functions = pickle.load(file)
for function in functions:
    print(*pickle.loads(function)(()), sep="|")
"""


def worker(folder: Path, *functions: bytes) -> list[str]:
    """Unpickle and call functions in one process that has nothing of ours; return what each gave."""
    (folder / "functions").write_bytes(pickle.dumps(functions))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder / "functions")],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def looking() -> Callable[[Any], Iterator[str]]:
    """Return a function that tells what it finds where it runs."""

    def look(batches: Any) -> Iterator[str]:
        import airflow_provider_backpressure
        from airflow_provider_backpressure.spark import job

        yield str(airflow_provider_backpressure.RELEASE)
        yield job.__file__
        yield str(environment(["pyarrow", "airflow_provider_backpressure.hooks"])["modules"])
        yield str(sorted({"airflow", "sqlalchemy"} & set(sys.modules)))

    return look


def release(number: int) -> tuple[str, bytes]:
    """Return our code as if another release had it."""
    name, packed = cargo()
    texts = json.loads(zlib.decompress(packed))
    texts["airflow_provider_backpressure/__init__.py"] += f"\nRELEASE = {number}\n"
    return f"{name}-{number}", zlib.compress(json.dumps(texts).encode())


def test_a_worker_without_our_code_finds_it_in_the_job(tmp_path: Path) -> None:
    """And what it does not find is not there: nothing of Airflow's side travels."""
    with carry_code(*release(1)):
        pickled = cloudpickle.dumps(aboard(looking()))
    [found] = worker(tmp_path, pickled)
    number, file, modules, others = found.split("|")
    assert number == "1"
    assert file == f"/{release(1)[0]}/airflow_provider_backpressure/spark/job.py"
    assert "'airflow_provider_backpressure.hooks': None" in modules
    assert "'pyarrow': None" not in modules
    assert others == "[]"


def test_a_worker_that_served_another_release_takes_this_one(tmp_path: Path) -> None:
    """Sessions share the workers: none runs the code of its neighbour."""
    pickled = []
    for number in (1, 2, 1):
        with carry_code(*release(number)):
            pickled.append(cloudpickle.dumps(aboard(looking())))
    assert [found.split("|")[0] for found in worker(tmp_path, *pickled)] == ["1", "2", "1"]


def test_where_nothing_is_carried_a_function_stays_itself() -> None:
    """An application has our code as a file of its own."""
    look = looking()
    with carry_code(*cargo()):
        assert aboard(look) is not look
    assert aboard(look) is look
