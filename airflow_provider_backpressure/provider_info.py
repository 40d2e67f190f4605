"""Describes this package to Airflow. Every ``airflow`` process reads it, so it imports nothing at all."""

from typing import Any

PACKAGE = "airflow_provider_backpressure"
INTEGRATION = "Backpressure"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-backpressure",
        "name": INTEGRATION,
        "description": "Hydrates big tables with Airflow and Spark, one committed range at a time.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "operators": [{"integration-name": INTEGRATION, "python-modules": [f"{PACKAGE}.operators"]}],
        "sensors": [{"integration-name": INTEGRATION, "python-modules": [f"{PACKAGE}.sensors"]}],
        "triggers": [{"integration-name": INTEGRATION, "python-modules": [f"{PACKAGE}.triggers"]}],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": [f"{PACKAGE}.hooks"]}],
        "extra-links": [f"{PACKAGE}.links.HydrationLink", f"{PACKAGE}.links.RangeLink"],
        "connection-types": [_connection_type()],
        "db-managers": [f"{PACKAGE}.ledger.db_manager.BackpressureDBManager"],
        "cli": [f"{PACKAGE}.cli.definition.get_commands"],
        "config": {"backpressure": {"description": "Settings of the backpressure provider.", "options": _options()}},
    }


def _connection_type() -> dict[str, Any]:
    text = {"type": ["string", "null"]}
    return {
        "connection-type": "backpressure",
        "hook-class-name": f"{PACKAGE}.hooks.backpressure.BackpressureHook",
        "hook-name": "Backpressure ledger",
        "ui-field-behaviour": {
            "hidden-fields": ["extra"],
            "relabeling": {"schema": "Database"},
            "placeholders": {
                "host": "Host of the ledger's PostgreSQL or MySQL",
                "port": "5432, or 3306 for MySQL",
                "login": "backpressure",
            },
        },
        "conn-fields": {
            "dialect": {
                "label": "Kind of database",
                "description": "postgresql (if left empty) or mysql.",
                "schema": {**text, "enum": ["postgresql", "mysql", None]},
            },
            "path": {
                "label": "SQLite file",
                "description": "Absolute path of the ledger's SQLite file, instead of a host.",
                "schema": text,
            },
            "sslmode": {"label": "SSL mode", "description": "libpq's sslmode for PostgreSQL.", "schema": text},
            "sslrootcert": {
                "label": "SSL root certificate",
                "description": "PostgreSQL: path of a file.",
                "schema": text,
            },
            "ssl_ca": {
                "label": "SSL authority",
                "description": "MySQL: path of a file; with it TLS is used.",
                "schema": text,
            },
        },
    }


def _options() -> dict[str, Any]:
    return {
        "environment": {
            "description": "Name of this Airflow among those that share sources and sinks; a part of each identity.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "production",
            "default": "default",
        },
        "inline_wait": {
            "description": "Seconds that a lane waits at a closed gate before it gives its worker slot back.",
            "version_added": "0.1.0",
            "type": "float",
            "example": None,
            "default": "30",
        },
        "poll_interval": {
            "description": "Most seconds between two looks at a closed gate, of a lane, trigger or sensor.",
            "version_added": "0.1.0",
            "type": "float",
            "example": None,
            "default": "0.5",
        },
        "gate_closed_seconds": {
            "description": "Seconds for which a gate may be closed before an event says so.",
            "version_added": "0.1.0",
            "type": "float",
            "example": None,
            "default": "600",
        },
        "sample_days": {
            "description": "Days for which samples of a hydration are kept, for rates and charts.",
            "version_added": "0.1.0",
            "type": "float",
            "example": None,
            "default": "7",
        },
        "sample_rows": {
            "description": "Most samples that are kept of a hydration.",
            "version_added": "0.1.0",
            "type": "integer",
            "example": None,
            "default": "100000",
        },
        "history_days": {
            "description": "Days for which ranges and markers of earlier plans are kept, which no run needs any more.",
            "version_added": "0.1.0",
            "type": "float",
            "example": None,
            "default": "90",
        },
        "history_plans": {
            "description": "Most earlier plans of a hydration that are kept; the end of each run removes older ones.",
            "version_added": "0.1.0",
            "type": "integer",
            "example": None,
            "default": "20",
        },
        "push": {
            "description": "How changes of a gate are pushed to waiting tasks: auto, postgres, kafka, local or none.",
            "version_added": "0.1.0",
            "type": "string",
            "example": "none",
            "default": "auto",
        },
    }
