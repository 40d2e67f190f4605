"""Positions of each stream of a log in a target, as a new plan finds and leaves them."""

from psycopg import sql

from airflow_provider_backpressure.connectors.postgres.shared_connection import Connection
from airflow_provider_backpressure.core.snapshot.offsets import LogWindow
from airflow_provider_backpressure.core.snapshot.plan import Plan
from airflow_provider_backpressure.core.snapshot.replay_window import ReplayWindow
from airflow_provider_backpressure.core.snapshot.stream_positions import find_start_positions
from airflow_provider_backpressure.exceptions import SinkRefused


def place_streams(connection: Connection, plan: Plan) -> None:
    """Set every stream of an ordered plan to where the plan begins, within the transaction that raises the fence.

    ``SinkRefused`` where an increment would begin before what the target has.
    """
    window, replayed = LogWindow.from_window(plan.read.window), ReplayWindow.from_window(plan.read.window)
    if not plan.write.ordered:
        return
    table = sql.SQL(plan.write.frontier_table)
    if replayed is not None:
        _place_log(connection, plan, replayed)
    if window is None:
        return
    there: dict[str, int] = dict(
        connection.execute(
            sql.SQL("SELECT stream, pos FROM {} WHERE target = %s FOR UPDATE").format(table), (plan.write.fence,)
        ).fetchall()
    )
    for stream, start in find_start_positions(window, there, target=plan.write.fence, increment=plan.increment).items():
        connection.execute(sql.SQL(_PLACE).format(table), (plan.write.fence, stream, start))


def _place_log(connection: Connection, plan: Plan, window: ReplayWindow) -> None:
    """Set a log's stream to where it was kept from, after ranges, or check that it is where the plan begins."""
    table, start = sql.SQL(plan.write.frontier_table), window.start
    query = sql.SQL("SELECT pos FROM {} WHERE target = %s AND stream = %s FOR UPDATE").format(table)
    found = connection.execute(query, (plan.write.fence, window.stream)).fetchone()
    if not window.first and (found is None or found[0] != start.at):
        raise SinkRefused(
            f"The log was replayed into {plan.write.fence} up to {found[0] if found else 'no position'}, and the plan "
            f"would continue from {start.at} ({start.label}): ledger or target was restored. Trigger the DAG with "
            '{"backpressure": "restart"} to read the table again.'
        )
    connection.execute(sql.SQL(_PLACE).format(table), (plan.write.fence, window.stream, start.at))


_PLACE = """
    INSERT INTO {} (target, stream, pos) VALUES (%s, %s, %s)
    ON CONFLICT (target, stream) DO UPDATE SET pos = excluded.pos, moved_at = clock_timestamp()
"""
