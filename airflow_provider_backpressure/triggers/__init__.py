"""Triggers: waiting without a worker slot."""

from airflow_provider_backpressure.triggers.admission import AdmissionTrigger

__all__ = ["AdmissionTrigger"]
