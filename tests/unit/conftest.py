"""Unit tests that import Airflow do so in a home of their own, not in the user's."""

import os
import tempfile

_home = tempfile.TemporaryDirectory(prefix="airflow-home-")
# Before any test module imports Airflow, which reads its home when it is imported.
os.environ["AIRFLOW_HOME"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
