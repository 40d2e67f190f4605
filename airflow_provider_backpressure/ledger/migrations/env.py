"""Run by Alembic for each command. The engine is handed over by ``migration`` or by Airflow's database manager."""

from typing import Any

from alembic import context

from airflow_provider_backpressure.ledger.models import metadata
from airflow_provider_backpressure.ledger.revision import VERSION_TABLE

OPTIONS: dict[str, Any] = {
    "target_metadata": metadata,
    "version_table": VERSION_TABLE,
    "render_as_batch": True,
    "compare_type": True,
    # The database holds other tables too, Airflow's among them: only ours are looked at.
    "include_name": lambda name, type_, parents: type_ != "table" or name in metadata.tables,
}


def offline() -> None:
    """Print the statements."""
    context.configure(url=context.config.get_main_option("sqlalchemy.url"), literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def online() -> None:
    """Run the statements, each revision in a transaction of its own."""
    with context.config.attributes["engine"].connect() as connection:
        context.configure(connection=connection, transaction_per_migration=True, **OPTIONS)
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    offline()
else:
    online()
