"""Hydrate big tables and topics with Airflow and Spark, one committed range at a time."""

__version__ = "0.1.0.dev0"
