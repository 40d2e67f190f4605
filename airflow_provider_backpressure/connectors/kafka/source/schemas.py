"""The schemas of a topic's keys or values: the columns that they make together, and what tasks get of them.

Every version of a subject is pinned when a run plans, behind the end of what it reads: a record's schema is registered
before the record is written. So tasks need no registry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_backpressure.connectors.kafka.source.formats import KEY, Format
from airflow_provider_backpressure.connectors.kafka.source.registry import Registry, Version
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.messages import Column
from airflow_provider_backpressure.exceptions import RESTART, InvalidDeclaration, SourceRefused

Types = Mapping[str, str | None]
_WIDER = frozenset(
    {("integer", "bigint"), ("integer", "double precision"), ("real", "double precision"), ("bigint", "numeric")}
)
"""Types of a column of which the second holds every value of the first."""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The schemas of one subject, as a plan goes by them."""

    format: Format
    subject: str
    versions: tuple[tuple[Version, Types], ...]
    """The oldest first, each with the types of its columns."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Type by name: the fields of every version that fits the latest one, in the order in which they appeared."""
    misfits: Mapping[int, str] = field(default_factory=dict)
    """Why records of a schema cannot be read by the latest one, by the schema's id."""

    @property
    def latest(self) -> Version:
        """What records are read by."""
        return self.versions[-1][0]

    def upto(self, schema_id: int) -> "Pinned | None":
        """Return the same as of a version; ``None`` where the subject has it no longer."""
        places = [place for place, (version, _) in enumerate(self.versions) if version.id == schema_id]
        return merge(self.format, self.subject, self.versions[: places[-1] + 1]) if places else None

    def check_against(self, schema_id: int | None) -> None:
        """Raise ``SourceRefused`` where the latest version does not fit the one that the last plan read by."""
        before = self.upto(schema_id) if schema_id is not None else None
        if before is None:
            return
        changed = [
            f"column {name} was {type_} and is {self.columns[name]}"
            for name, type_ in before.columns.items()
            if self.columns.get(name, type_) != type_
        ]
        changed += [f"column {name} is gone" for name in before.columns if name not in self.columns]
        if changed:
            raise SourceRefused(
                f"Schema {self.latest.id} (version {self.latest.number} of subject {self.subject}) does not fit schema "
                f"{schema_id}, by which the last plan read: {'; '.join(changed)}. What is committed stays; {RESTART}."
            )

    def to_json(self) -> dict[str, Any]:
        """Return what tasks need."""
        schemas = {}
        for version, _ in self.versions:
            texts = {"schema": version.schema, "references": [list(each) for each in version.references]}
            misfit = self.misfits.get(version.id)
            schemas[str(version.id)] = texts if misfit is None else {"misfit": misfit}
        return {
            "format": self.format.kind,
            "subject": self.subject,
            "latest": self.latest.id,
            "schemas": schemas,
            **self.format.settings(),
        }


def pin(format_: Format, subject: str, whole: str, place: Endpoint) -> Pinned:
    """Return the schemas of a subject, by the registry as it is now; ``whole`` names the column of a single value."""
    versions = Registry(endpoint=place).versions(subject)
    strange = [each for each in versions if each.type != format_.schema_type]
    if strange or not versions:
        what = f"is of type {strange[-1].type}" if strange else "has no version"
        raise SourceRefused(
            f"Subject {subject} of the schema registry at {place.host} {what}, and {type(format_).__name__} needs "
            f"schemas of type {format_.schema_type}."
        )
    return merge(format_, subject, tuple((each, _types(format_, each, subject, whole)) for each in versions))


def _types(format_: Format, version: Version, subject: str, whole: str) -> Types:
    try:
        return format_.column_types(version, whole)
    except InvalidDeclaration as error:
        raise SourceRefused(f"Version {version.number} of subject {subject} cannot be read. {error}") from error


def merge(format_: Format, subject: str, versions: tuple[tuple[Version, Types], ...]) -> Pinned:
    """Return the columns that these versions make together, and which of them do not fit the latest."""
    columns: dict[str, str | None] = {}
    latest = versions[-1][0].id
    misfits: dict[int, str] = {}
    for version, types in reversed(versions):
        reasons = [
            f"field {name} is {type_} and not {columns[name]}"
            for name, type_ in types.items()
            if not is_held(type_, columns.get(name))
        ]
        if reasons:
            misfits[version.id] = f"its schema {version.id} does not fit schema {latest}: {'; '.join(reasons)}"
            continue
        columns |= {name: type_ for name, type_ in types.items() if columns.get(name) is None}
    fitting = [types for version, types in versions if version.id not in misfits]
    names = dict.fromkeys(name for types in fitting for name in types)
    return Pinned(
        format=format_,
        subject=subject,
        versions=versions,
        columns={name: columns[name] or "text" for name in names},
        misfits=misfits,
    )


def is_held(type_: str | None, column: str | None) -> bool:
    """Whether a column of a type holds every value of another type; ``None`` is of nulls only, and of no column."""
    if type_ is None or column is None or type_ == column or (type_, column) in _WIDER:
        return True
    if column == "text":
        return type_ == "uuid"
    if type_.startswith("numeric(") and column.startswith("numeric("):
        (precision, scale), (wider, finer) = (_digits(each) for each in (type_, column))
        return finer >= scale and wider - finer >= precision - scale
    return False


def _digits(type_: str) -> tuple[int, int]:
    precision, _, scale = type_.removeprefix("numeric(").removesuffix(")").partition(",")
    return int(precision), int(scale)


def to_key(pinned: Pinned) -> Column:
    """Return the column of keys. A record is one JSON text, by which rows can be upserted."""
    types = dict(pinned.columns)
    return Column(name=KEY, type=types[KEY] if list(types) == [KEY] and types[KEY] != "json" else "text")


def to_columns(pinned: Pinned) -> Sequence[Column]:
    """Return the columns of values. Each may be NULL: a tombstone has none of them."""
    return [Column(name=name, type=type_) for name, type_ in pinned.columns.items()]
