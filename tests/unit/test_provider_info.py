"""What Airflow is told of the package."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import airflow
import jsonschema

from airflow_provider_backpressure.core import default_limits
from airflow_provider_backpressure.provider_info import get_provider_info


def test_it_imports_nothing():
    """Every ``airflow`` process imports it: the standard library and the package's own root are all it may load."""
    script = (
        "import sys; before = set(sys.modules)\n"
        "from airflow_provider_backpressure.provider_info import get_provider_info; get_provider_info()\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['airflow_provider_backpressure']"


def test_it_keeps_airflow_s_schema():
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_everything_named_exists():
    info = get_provider_info()
    names = [
        *info["cli"],
        *info["db-managers"],
        *info["extra-links"],
        *(one["hook-class-name"] for one in info["connection-types"]),
    ]
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)


def test_defaults_of_settings_are_those_of_the_code():
    options = get_provider_info()["config"]["backpressure"]["options"]
    in_code = {
        "inline_wait": default_limits.INLINE_WAIT_SECONDS,
        "poll_interval": default_limits.POLL_SECONDS,
        "gate_closed_seconds": default_limits.GATE_CLOSED_SECONDS,
        "sample_days": default_limits.SAMPLE_DAYS,
        "sample_rows": default_limits.SAMPLE_ROWS,
        "history_days": default_limits.HISTORY_DAYS,
        "history_plans": default_limits.HISTORY_PLANS,
    }
    assert {name: float(options[name]["default"]) for name in in_code} == in_code
