"""How far each stream of a log has come in a target, as a new plan finds it and leaves it."""

from psycopg import sql

from airflow_provider_backpressure.core.offsets import LogWindow
from airflow_provider_backpressure.core.snapshot import Plan
from airflow_provider_backpressure.exceptions import SinkRefused
from airflow_provider_backpressure.postgres.session import Connection


def place_streams(connection: Connection, plan: Plan) -> None:
    """Set every stream of an ordered plan to where the plan begins, within the transaction that raises the fence.

    ``SinkRefused`` where an increment would begin before what the target has: then ledger and target are not of each
    other. Its attempts could only write old rows over newer ones.
    """
    window = LogWindow.of(plan.read.window)
    if not plan.write.ordered or window is None:
        return
    table = sql.SQL(plan.write.frontier_table)
    there: dict[str, int] = dict(
        connection.execute(
            sql.SQL("SELECT stream, pos FROM {} WHERE target = %s FOR UPDATE").format(table), (plan.write.fence,)
        ).fetchall()
    )
    for partition, start in sorted(window.start.items()):
        name = window.stream(partition)
        if plan.increment and there.get(name, start) > start:
            raise SinkRefused(
                f"{plan.write.fence} has partition {partition} up to offset {there[name]}, and the plan would begin "
                f"again at {start}: the ledger was restored. Trigger the DAG with "
                '{"backpressure": "restart"} to read the topic anew.'
            )
        connection.execute(sql.SQL(_PLACE).format(table), (plan.write.fence, name, start))


_PLACE = """
    INSERT INTO {} (target, stream, pos) VALUES (%s, %s, %s)
    ON CONFLICT (target, stream) DO UPDATE SET pos = excluded.pos, moved_at = clock_timestamp()
"""
