"""The queues of Spark clusters, as a person may see them."""

from collections.abc import Mapping, Sequence

from airflow_provider_backpressure.core.gate.overrides import Shared
from airflow_provider_backpressure.core.gate.queue import CONCURRENCY, QueueEntry, estimate_starts, in_order
from airflow_provider_backpressure.core.ports.ledger import Ledger
from airflow_provider_backpressure.core.progress.summary import HydrationSummary
from airflow_provider_backpressure.plugins import schemas as answers
from airflow_provider_backpressure.plugins.authorization import User, readable, steerable

MOST_ACTS, SHOWN_ACTS = 100, 3


def queues(ledger: Ledger, user: User) -> answers.Queues:
    """Return the queues of the clusters on which the person sees a hydration, or something waits.

    Hydrations that the person may not see are only counted.
    """
    entries, clusters = ledger.queue(), ledger.clusters()
    owners = set().union(*clusters.values())
    shown = readable(user, owners)
    acts = [act for act in ledger.controls("", limit=MOST_ACTS) if act.values.get("kind") == Shared.HYDRATIONS]
    found = ledger.glances(ids=[entry.hydration_id for entry in entries], limit=max(1, len(entries)))
    by_id = {one.hydration.id: one for one in found if one.hydration.owner in shown}
    left = {one.hydration.id: one.eta.seconds if one.eta else None for one in found}
    told = []
    for name in sorted(clusters):
        own = [entry for entry in entries if entry.cluster == name]
        if own or clusters[name] & shown:
            most = ledger.get_shared(Shared.HYDRATIONS, name)
            queue = _queue(name, own, by_id, left, CONCURRENCY if most is None else most)
            queue.may_steer = clusters[name] <= shown and clusters[name] <= steerable(user, clusters[name])
            queue.acts = [answers.Act.from_value(act) for act in acts if act.values.get("name") == name][:SHOWN_ACTS]
            told.append(queue)
    return answers.Queues(clusters=told)


def _queue(
    name: str,
    own: Sequence[QueueEntry],
    shown: Mapping[str, HydrationSummary],
    left: Mapping[str, float | None],
    most: int,
) -> answers.ClusterQueue:
    here = {entry.hydration_id: left[entry.hydration_id] for entry in own if entry.hydration_id in left}
    starts = estimate_starts(own, here, concurrency=most)
    places = {entry.hydration_id: number for number, entry in enumerate(in_order(own), start=1)}
    turns = [
        answers.Turn(
            id=entry.hydration_id,
            target=now.hydration.sink_identity,
            dag_id=now.hydration.owner,
            running=entry.running,
            position=places.get(entry.hydration_id),
            priority=entry.priority,
            ready_at=entry.ready_at,
            starts_in_seconds=starts.get(entry.hydration_id),
        )
        for entry in own
        if (now := shown.get(entry.hydration_id)) is not None
    ]
    running = sum(entry.running for entry in own)
    return answers.ClusterQueue(
        cluster=name,
        at_once=most,
        running=running,
        waiting=len(own) - running,
        turns=turns,
        acts=[],
        may_steer=False,
    )
