"""Iceberg: the token of a note is a WAP id. A table publishes one snapshot for each id.

Rows go to a branch of their own, which no reader sees. The snapshot of the branch is then cherry-picked: a commit of
metadata that is repeated where another commit came first, and refused where the id was published before.
"""

import logging
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.types import DataType, StructType

from airflow_provider_backpressure.connectors.lake.markers import format_other_sink
from airflow_provider_backpressure.connectors.lake.spark.commit_notes import CHAIN, HEAD, KEY, PLAN, LogState, Note
from airflow_provider_backpressure.connectors.lake.spark.connect_or_classic_session import SPARK_ERRORS, disable_cache
from airflow_provider_backpressure.connectors.lake.spark.delta import check_format
from airflow_provider_backpressure.connectors.lake.spark.table import (
    TRIES,
    MakeStatement,
    SparkTable,
    first_line,
    is_widened,
)
from airflow_provider_backpressure.core.poll_policy import PollPolicy
from airflow_provider_backpressure.exceptions import SinkRefused, SinkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

WAP, PUBLISHED, SOURCE = "wap.id", "published-wap-id", "source-snapshot-id"
_PROPERTY = "spark.sql.iceberg.snapshot-property"
"""Beginning of the settings of a session that become properties of the snapshots it makes."""
CURRENT = "current-snapshot-id"
"""Property in which the connector shows the snapshot that readers see."""
_BRANCH = re.compile(f"{KEY}_[0-9a-f]{{13}}")
"""Name of a branch that an execution writes to."""
EXTENSIONS = "IcebergSparkSessionExtensions"
MAX_AGE, MAX_AGE_DEFAULT = "history.expire.max-snapshot-age-ms", 5 * 24 * 3600 * 1000
"""Property that says how long snapshots are kept, in milliseconds, and what the connector takes without it."""
_OVERTAKEN = ("CommitFailedException", "CommitStateUnknownException")


class IcebergTable(SparkTable):
    """Implements :class:`SparkTable`."""

    format = "iceberg"
    overtaken = ("Cannot fast-forward",)

    def __init__(self, session: "SparkSession", name: str) -> None:
        """See :class:`SparkTable`."""
        super().__init__(session, name)
        # Ranges would share the table's object otherwise: one that commits changes what another has just read, and the
        # connector takes snapshots for published that are not.
        self._may_be_cached = disable_cache(session, name.partition(".")[0])
        self._seen, self._notes = "", list[Note]()
        self._present, self._lost = set[str](), set[str]()
        self._line = Line()
        self._snapshots = dict[str, Any]()

    creation: ClassVar[Mapping[str, str]] = {"commit.retry.num-retries": "20"}
    creation_to_follow: ClassVar[Mapping[str, str]] = {
        "format-version": "2",
        **{f"write.{what}.mode": "merge-on-read" for what in ("merge", "update", "delete")},
    }

    def check(self, there: StructType | None) -> None:
        """See :meth:`SparkTable.check`."""
        if there is None:
            check_format(self.session, self.format, self.name)
        else:
            rows = self.ask(f"DESCRIBE TABLE EXTENDED {self.quoted}")
            known = {row["col_name"]: row["data_type"] for row in rows}
            provider = known.get("Provider", "")
            if provider != self.format:
                raise SinkRefused(f"{self.name} is a table of the format {provider or 'unknown'}, not {self.format}.")
            moments = [each.name for each in there.fields if each.dataType.typeName().startswith("timestamp")]
            if moments and "write.format.default=orc" in known.get("Table Properties", ""):
                # ORC cuts seconds off towards 0, and takes 23:59:59.5 of the last day of 1969 for a second later.
                raise SinkRefused(
                    f"{self.name} writes ORC files, which do not keep all moments before 1970 of {', '.join(moments)}: "
                    f"run ALTER TABLE {self.quoted} SET TBLPROPERTIES ('write.format.default' = 'parquet')."
                )
        if EXTENSIONS not in (self.session.conf.get("spark.sql.extensions", "") or ""):
            raise SinkRefused(
                f"{self.name} needs Iceberg's SQL extensions: set spark.sql.extensions of the Spark Connect server, or "
                f"in conf of a connection of type spark, to org.apache.iceberg.spark.extensions.{EXTENSIONS}."
            )

    def takes(self, there: DataType, arriving: DataType) -> bool:
        """See :meth:`SparkTable.takes`. Iceberg has no smallint."""
        return there == arriving or is_widened(there, arriving)

    def read_state(self) -> LogState:
        """See :meth:`SparkTable.read_state`. A snapshot that was published on top of another one names its origin.

        A rollback keeps the properties, so that one of them names the snapshot that the present one has to come from.
        """
        self.refresh()
        properties = self.all_properties()
        if properties.get(PLAN, "").startswith("{"):
            raise SinkRefused(format_other_sink(self.name, "IcebergSink"))
        head = properties.get(CURRENT, "none")
        if head != self._seen:
            # What has been read of a snapshot and those before it never changes.
            snapshots = self._snapshots if head in self._snapshots else self._list_snapshots()
            self._line = Line.read(head, snapshots)
            summaries = [summary for summary in _list_ancestors(head, snapshots) if _is_ours(summary)]
            found = [(_find_token(summary), _find_note(summary, snapshots)) for summary in summaries]
            self._present = {token for token, _ in found}
            self._lost = {token for token, note in found if note is None}
            self._notes = [note for _, note in found if note is not None]
            self._seen = head
        left = properties.get(HEAD, "")
        cut_off = left.partition("@")[0] if left and not self._line.comes_from(left) else ""
        return LogState.read(
            self._notes,
            properties,
            present=self._present,
            lost=self._lost,
            cut_off=cut_off,
            head=self._line.head,
        )

    def describe_head(self) -> dict[str, str]:
        """See :meth:`SparkTable.describe_head`."""
        return {HEAD: self._line.head} if self._line.head else {}

    def find_last_change(self) -> str:
        """See :meth:`SparkTable.find_last_change`."""
        self.refresh()
        properties, snapshots = self.all_properties(), self._list_snapshots()
        return find_last_change(properties.get(CURRENT, "none"), properties.get(CHAIN, ""), snapshots)

    def describe_chain(self) -> dict[str, str]:
        """See :meth:`SparkTable.describe_chain`."""
        head = self._line.head.partition("@")[0]
        return {CHAIN: f"{self.find_last_change()}@{head}@{self._find_columns()}"} if head else {}

    def has_kept_columns(self) -> bool:
        """See :meth:`SparkTable.has_kept_columns`. Columns are changed without a snapshot."""
        kept = self.properties().get(CHAIN, "")
        return not kept or kept.rpartition("@")[2] == self._find_columns()

    def _find_columns(self) -> str:
        """Return the number of the columns that the present snapshot was committed with."""
        log_of = f"{self.quoted}.metadata_log_entries"
        rows = self.ask(f"SELECT latest_schema_id FROM {log_of} ORDER BY timestamp DESC, file DESC LIMIT 1")  # noqa: S608
        return str(rows[0][0]) if rows else ""

    def append(self, note: Note, rows: "DataFrame | None" = None) -> None:
        """See :meth:`SparkTable.append`."""
        branch = make_branch(note.nonce)
        self.refresh()
        self._commit(f"ALTER TABLE {self.quoted} CREATE BRANCH IF NOT EXISTS `{branch}`")
        frame = self.empty() if rows is None else rows
        frame.writeTo(self._quote_branch(branch)).option(f"snapshot-property.{WAP}", note.token).option(
            f"snapshot-property.{KEY}", note.to_json()
        ).append()
        self._publish_branch(branch, note)
        self._commit(f"ALTER TABLE {self.quoted} DROP BRANCH IF EXISTS `{branch}`")

    def note_settings(self, note: Note) -> dict[str, str]:
        """See :meth:`SparkTable.note_settings`."""
        return {f"{_PROPERTY}.{name}": value for name, value in ((WAP, note.token), (KEY, note.to_json()))}

    def replace_rows(self, session: "SparkSession", state: LogState, make_statement: MakeStatement) -> None:
        """See :meth:`SparkTable.replace_rows`. It is done in a branch, which then becomes the table.

        Such a commit cannot be cherry-picked: its snapshot becomes that of the table as it is, by a fast-forward, or is
        refused where any other commit came first. The delete of whole files keeps no note: a fence has to follow it.
        """
        branch = make_branch(secrets.randbelow(2**52))
        try:
            self._replace_in_branch(branch, session, state.head.partition("@")[0], make_statement)
        finally:
            self._commit(f"ALTER TABLE {self.quoted} DROP BRANCH IF EXISTS `{branch}`")

    def _replace_in_branch(
        self, branch: str, session: "SparkSession", fork: str, make_statement: MakeStatement
    ) -> None:
        self._commit(f"ALTER TABLE {self.quoted} CREATE BRANCH `{branch}` AS OF VERSION {fork}")
        # Made behind the fork, so that what it relies on is refused with it where another commit came first.
        statement = make_statement(self._quote_branch(branch))
        self.refresh(session)
        session.sql(statement)
        self.refresh()
        head, snapshots = self._read_branch(branch)
        if head == fork:
            return
        if str(snapshots[head]["parent_id"]) != fork:
            raise SinkUnavailable(f"The branch {branch} of {self.name} was written by another merge too.")
        self._commit(f"CALL {self._procedures}.fast_forward('{self.quoted}', 'main', '{branch}')")

    @property
    def _procedures(self) -> str:
        return f"`{self.name.partition('.')[0]}`.system"

    def _read_branch(self, branch: str) -> tuple[str, dict[str, Any]]:
        """Return the head of a branch and the snapshots that are there, by one query."""
        snapshots, head = self._read_snapshots(branch)
        if not head:
            raise SinkUnavailable(f"The branch {branch} of {self.name} was removed while it was written.")
        return head, snapshots

    def _list_snapshots(self) -> dict[str, Any]:
        return self._read_snapshots()[0]

    def _read_snapshots(self, branch: str = "") -> tuple[dict[str, Any], str]:
        """Return the snapshots that are there, and the head of a branch if there is one.

        What a snapshot says of itself never changes, so it is fetched once.
        """
        since = max((row["at"] for row in self._snapshots.values()), default=0)
        found, head = self._fetch_snapshots(since, branch)
        lacking = [key for key, row in found.items() if row["summary"] is None]
        if any(key not in self._snapshots for key in lacking):
            # One that came late, by another clock.
            (found, head), lacking = self._fetch_snapshots(0, branch), []
        self._snapshots = {**found, **{key: self._snapshots[key] for key in lacking}}
        return self._snapshots, head

    def _fetch_snapshots(self, since: int, branch: str) -> tuple[dict[str, Any], str]:
        """Return all snapshots, with the summaries of those that were committed since a time, in milliseconds."""
        at = "unix_millis(committed_at)"
        columns = f"snapshot_id, parent_id, operation, {at} AS at, IF({at} >= {since}, summary, NULL) AS summary"
        query = f"SELECT {columns}, NULL AS branch FROM {self.quoted}.snapshots"  # noqa: S608
        if branch:
            head = f"SELECT snapshot_id, NULL, NULL, NULL, NULL, name FROM {self.quoted}.refs"  # noqa: S608
            query += f" UNION ALL {head} WHERE name = '{branch}'"
        rows = self.ask(query)
        found = {str(row["snapshot_id"]): row for row in rows if not row["branch"]}
        return found, next((str(row["snapshot_id"]) for row in rows if row["branch"]), "")

    def _quote_branch(self, branch: str) -> str:
        return f"{self.quoted}.`branch_{branch}`"

    def tidy(self) -> None:
        """See :meth:`SparkTable.tidy`. A branch keeps its snapshot, with all files, from being expired."""
        self.refresh()
        names = [row["name"] for row in self.ask(f"SELECT name FROM {self.quoted}.refs")]  # noqa: S608
        for name in filter(_BRANCH.fullmatch, names):
            self._commit(f"ALTER TABLE {self.quoted} DROP BRANCH IF EXISTS `{name}`")

    def compact(self) -> None:
        """See :meth:`SparkTable.compact`. Files of deletes that apply to no file any more go too."""
        options = "map('min-input-files', '2', 'remove-dangling-deletes', 'true')"
        self.refresh()
        self.run(f"CALL {self._procedures}.rewrite_data_files(table => '{self.quoted}', options => {options})")
        if self.all_properties().get("format-version") == "2":
            self.run(f"CALL {self._procedures}.rewrite_position_delete_files(table => '{self.quoted}')")

    def remove_old_versions(self) -> None:
        """See :meth:`SparkTable.remove_old_versions`. Before the first plan has ended nothing is removed."""
        self.refresh()
        properties, snapshots = self.all_properties(), self._list_snapshots()
        left = properties.get(HEAD, "").partition("@")[0]
        needed = find_oldest_needed(properties.get(CURRENT, ""), left, snapshots)
        if needed is None:
            return
        age = f"SELECT unix_millis(now()), max_snapshot_age_in_ms FROM {self.quoted}.refs WHERE name = 'main'"  # noqa: S608
        ((now, own),) = self.ask(age)
        if own is not None and now - own > needed:
            # An age of the branch itself counts more than what is asked for, and what is needed would go.
            return
        bound = min(now - int(properties.get(MAX_AGE, MAX_AGE_DEFAULT)), needed)
        before = datetime.fromtimestamp(bound / 1000, UTC).isoformat(" ", "milliseconds")
        self.run(
            f"CALL {self._procedures}.expire_snapshots(table => '{self.quoted}', older_than => TIMESTAMP '{before}')"
        )

    def refresh(self, session: "SparkSession | None" = None) -> None:
        """Let a session, or that of the table, forget what its catalog has cached of the table, if it may cache any."""
        if self._may_be_cached:
            (session or self.session).sql(f"REFRESH TABLE {self.quoted}")

    def _publish_branch(self, branch: str, note: Note) -> None:
        call = f"CALL {self._procedures}.cherrypick_snapshot('{self.quoted}', {self._read_branch(branch)[0]})"
        try:
            self._commit(call)
        except SPARK_ERRORS as error:
            # The id was published before: the commit that did it, and its note, decide. An empty snapshot on top of
            # main becomes main itself, so that a repeated call finds it there already.
            if not any(sign in str(error) for sign in ("DuplicateWAPCommit", "already an ancestor")):
                raise
            log.info("%s has %s already: %s", self.name, note.token, first_line(error))

    def _commit(self, statement: str) -> None:
        """Run a statement that commits metadata, again where other commits came first."""
        for number, pause in enumerate(PollPolicy().waits(), start=1):
            try:
                self.run(statement)
            except SPARK_ERRORS as error:
                if number == TRIES or not any(sign in str(error) for sign in _OVERTAKEN):
                    raise
                log.info("%s was committed to by others, trying again: %s", self.name, first_line(error))
                time.sleep(pause)
            else:
                return


@dataclass(frozen=True, kw_only=True)
class Line:
    """The snapshots that the present one comes from, as far back as they are not expired."""

    head: str = ""
    """The present snapshot and its time, as ``id@milliseconds``; empty where there is none."""
    ids: frozenset[str] = frozenset()
    """The present one, those before it, and the first before them that is expired."""
    others: frozenset[str] = frozenset()
    """Snapshots that are there and that the present one does not come from."""
    oldest: int = 0
    """When the oldest one that is there was committed, in milliseconds; 0 where nothing before it was expired."""

    @classmethod
    def read(cls, head: str, snapshots: Mapping[str, Any]) -> "Line":
        """Follow a snapshot back. ``snapshots``: rows of the metadata table by their id."""
        if head not in snapshots:
            return cls()
        ids, each = [head], snapshots[head]
        while each["parent_id"] is not None:
            ids.append(str(each["parent_id"]))
            if ids[-1] not in snapshots:
                break
            each = snapshots[ids[-1]]
        return cls(
            head=f"{head}@{snapshots[head]['at']}",
            ids=frozenset(ids),
            others=frozenset(snapshots) - frozenset(ids),
            oldest=0 if each["parent_id"] is None else int(each["at"]),
        )

    def comes_from(self, left: str) -> bool:
        """Whether the present snapshot comes from another one, given as :attr:`head`.

        Where that one is expired, by the time: what was rolled back to is older than what it was rolled back from.
        """
        snapshot_id, _, at = left.partition("@")
        return snapshot_id in self.ids or (snapshot_id not in self.others and self.oldest > int(at))


def make_branch(nonce: int) -> str:
    """Return the name of a branch that an execution writes to."""
    return f"{KEY}_{nonce:013x}"


def _list_ancestors(head: str, snapshots: Mapping[str, Any]) -> list[Any]:
    """Return the summaries of a snapshot and those before it, the oldest first."""
    found = []
    while head in snapshots:
        found.append(snapshots[head]["summary"])
        head = str(snapshots[head]["parent_id"])
    return found[::-1]


def find_oldest_needed(head: str, left: str, snapshots: Mapping[str, Any]) -> int | None:
    """Return when the oldest snapshot was committed that is still needed, in milliseconds.

    Needed are ``left``, at which the last plan has left the table, all from there up to ``head``, and their origins.
    ``None`` where ``head`` does not come from ``left``.
    """
    times = list[int]()
    while head in snapshots:
        row = snapshots[head]
        origin = snapshots.get(row["summary"].get(SOURCE, ""), row)
        times += [int(row["at"]), int(origin["at"])]
        if head == left:
            return min(times)
        head = str(row["parent_id"])
    return None


def find_last_change(head: str, chain: str, snapshots: Mapping[str, Any]) -> str:
    """Return the last snapshot before and with a head that others made, other than by a compaction; "none" for none.

    ``chain``: what was kept of an earlier answer, as the answer and its head. Where neither that nor the first snapshot
    is reached, the answer holds for this head alone.
    """
    last, _, known = chain.rpartition("@")[0].partition("@")
    at = head
    while at in snapshots:
        row = snapshots[at]
        if at == known:
            return last
        if row["operation"] != "replace" and not _is_ours(row["summary"]):
            return at
        if row["parent_id"] is None:
            return "none"
        at = str(row["parent_id"])
    return "none" if head == "none" else f"before {head}"


def _find_token(summary: Mapping[str, str]) -> str:
    return summary.get(PUBLISHED) or summary.get(WAP) or ""


def _is_ours(summary: Mapping[str, str]) -> bool:
    return _find_token(summary).startswith(f"{KEY}:")


def _find_note(summary: Mapping[str, str], snapshots: Mapping[str, Any]) -> Note | None:
    """Return the note of a published snapshot; ``None`` where its origin has been expired."""
    origin = snapshots.get(summary.get(SOURCE, ""))
    return Note.from_json(summary.get(KEY) or (origin["summary"].get(KEY) if origin else "") or "")
