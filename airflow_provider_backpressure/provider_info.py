"""What Airflow is told of this package. Every ``airflow`` process reads it, so it imports nothing at all."""

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
            "default": "1",
        },
    }
