"""Triggers: waiting without a worker slot."""

from airflow_provider_backpressure.triggers.admission import AdmissionTrigger
from airflow_provider_backpressure.triggers.turn import TurnTrigger

__all__ = ["AdmissionTrigger", "TurnTrigger"]
