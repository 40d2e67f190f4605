"""The replay path: a piece of a source's log into the target, in one task."""

from airflow_provider_backpressure.connectors.postgres.tasks.change_apply import replay
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import REPLAYED_INTO, RangeSpec, Slice, SliceResult
from airflow_provider_backpressure.core.snapshot.ranges import attempt_tag
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.spark.change_rows import log_reader


def replay_slice(spec: RangeSpec, piece: Slice, source: Endpoint, sink: Endpoint) -> SliceResult:
    """Replay a window exactly once and return what its marker says."""
    if spec.write.kind not in REPLAYED_INTO:
        raise InvalidDeclaration(f"No changes can be replayed into a {spec.write.kind} target.")
    name = attempt_tag(spec.plan_id, piece.slice_id, spec.attempt)
    return replay(sink, spec, log_reader(spec.read.kind).changes(source, spec.read, piece, spec.write.key, name))
