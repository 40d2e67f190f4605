"""Triggers: waiting without a worker slot."""

from airflow_provider_backpressure.triggers.admission import AdmissionTrigger
from airflow_provider_backpressure.triggers.admissions import AdmissionsTrigger
from airflow_provider_backpressure.triggers.turn import TurnTrigger
from airflow_provider_backpressure.triggers.unread import UnreadTrigger

__all__ = ["AdmissionTrigger", "AdmissionsTrigger", "TurnTrigger", "UnreadTrigger"]
