"""Triggers: waiting without a worker slot."""

import sys

from airflow_provider_backpressure.triggers import admission, new_data_event, other_run
from airflow_provider_backpressure.triggers.admission import AdmissionsTrigger, AdmissionTrigger
from airflow_provider_backpressure.triggers.new_data_event import UnreadTrigger
from airflow_provider_backpressure.triggers.other_run import TurnTrigger

__all__ = ["AdmissionTrigger", "AdmissionsTrigger", "TurnTrigger", "UnreadTrigger"]

STORED = {"admissions": admission, "turn": other_run, "unread": new_data_event}
"""Modules by the names that Airflow's database has for them: it holds the class paths of deferred triggers."""
sys.modules.update({f"{__name__}.{name}": module for name, module in STORED.items()})
