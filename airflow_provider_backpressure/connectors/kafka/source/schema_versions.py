"""The schemas of a topic's keys or values: the columns that they make together, and what tasks get of them.

Every version of a subject is pinned when a run plans, behind the end of what it reads: a record's schema is registered
before the record is written. So tasks need no registry.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_backpressure.connectors.kafka.record_columns import KEY
from airflow_provider_backpressure.connectors.kafka.source.formats import Format, Shape
from airflow_provider_backpressure.connectors.kafka.source.key_compatibility import digest_form
from airflow_provider_backpressure.connectors.kafka.source.schema_registry import Registry, Version
from airflow_provider_backpressure.core.endpoints import Endpoint
from airflow_provider_backpressure.core.snapshot.spark_messages import Column
from airflow_provider_backpressure.exceptions import RESTART, InvalidDeclaration, SourceRefused

_WIDER = frozenset(
    {
        ("integer", "bigint"),
        ("integer", "double precision"),
        ("real", "double precision"),
        ("bigint", "numeric"),
        ("bigint", "numeric(20,0)"),
        ("integer", "numeric(20,0)"),
    }
)
"""Types of a column of which the second holds every value of the first."""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The schemas of one subject, as a plan goes by them."""

    format: Format
    subject: str
    versions: tuple[tuple[Version, Shape], ...]
    """The oldest first and the latest last, each with what its records become."""
    declared: Format
    """The format as it is declared, without what the latest version adds to it."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Type by name: the fields of every version that fits the latest one, in the order in which they appeared."""
    misfits: Mapping[int, str] = field(default_factory=dict)
    """Why records of a schema cannot be read by the latest one, by the schema's id."""
    chosen: Collection[str] | None = None
    """Columns that are read; ``None``: all. What becomes of the others does not matter."""
    other_keys: Mapping[int, str] | None = None
    """Of keys: why those of a schema are no keys of the latest one, by the schema's id."""

    @property
    def latest(self) -> Version:
        """What records are read by."""
        return self.versions[-1][0]

    @property
    def every_name(self) -> tuple[str, ...]:
        """Names of all columns, also of those that are not read."""
        fields = dict.fromkeys(name for _, shape in self.versions for name in shape.types)
        return tuple(dict.fromkeys(self.format.names.get(name, name) for name in fields))

    @property
    def is_whole(self) -> bool:
        """Whether a value is one column by the latest version."""
        return self.versions[-1][1].is_whole

    @property
    def defaults(self) -> tuple[str, ...]:
        """Columns that had a default, and not null, when they were added for the last time."""
        found: dict[str, bool] = {}
        before: Set[str] = set()
        for version, shape in self.versions:
            if version.id not in self.misfits:
                found |= {name: name in shape.defaults for name in shape.types if name not in before}
                before = shape.types.keys()
        return tuple(self.format.names.get(name, name) for name, has in found.items() if has)

    def upto(self, schema_id: int) -> "Pinned | None":
        """Return the same as of a version; ``None`` where the subject has it no longer."""
        places = [place for place, (version, _) in enumerate(self.versions) if version.id == schema_id]
        versions = self.versions[: places[-1] + 1] if places else ()
        return merge(self.format, self.subject, versions, self.declared, self.chosen) if versions else None

    def check_against(self, schema_id: int | None) -> None:
        """Raise ``SourceRefused`` where the latest version does not fit the one that the last plan read by."""
        before = self.upto(schema_id) if schema_id is not None else None
        if before is None:
            return
        changed = [reason] if (reason := self.declared.describe_change(before.latest, self.latest)) else []
        changed += [
            f"column {name} was {type_} and is {self.columns[name]}"
            for name, type_ in before.columns.items()
            if self.columns.get(name, type_) != type_
        ]
        changed += [f"column {name} is gone" for name in before.columns if name not in self.columns]
        if before.is_whole != self.is_whole and not self.format.mixes:
            changed.append(_OTHER_SHAPE)
        if changed:
            raise SourceRefused(
                f"Schema {self.latest.id} (version {self.latest.number} of subject {self.subject}) does not fit schema "
                f"{schema_id}, by which the last plan read: {'; '.join(changed)}. What is committed stays; {RESTART}."
            )

    @property
    def key_form(self) -> str:
        """Digest of what decides the text of a key; empty where no schema decides it."""
        return digest_form(self.format.key_form(self.latest))

    def describe_rekeying(self, schema_id: int | None, form: str) -> str:
        """Return why rows that go by the text of a key have another one than in the last plan; empty: the same.

        ``form``: that plan's :attr:`key_form`, by which a schema is known that was deleted since; empty in a plan of an
        earlier version of this package.
        """
        if schema_id is None or not self.key_form:
            return ""
        if not form:
            before = [version for version, _ in self.versions if version.id == schema_id]
            form = digest_form(self.format.key_form(before[-1])) if before else ""
        if form == self.key_form:
            return ""
        differs = "writes keys in another way than" if form else "may write keys in another way than the deleted"
        return (
            f"Schema {self.latest.id} (version {self.latest.number} of subject {self.subject}) {differs} schema "
            f"{schema_id}, by which the last plan wrote them: what has one key would be two rows. "
            f"What is committed stays; {RESTART}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return what tasks need."""
        schemas = {}
        for version, _ in self.versions:
            texts = {"schema": version.schema, "references": [list(each) for each in version.references]}
            misfit = self.misfits.get(version.id)
            schemas[str(version.id)] = texts if misfit is None else {"misfit": misfit}
        fields = {name for _, shape in self.versions for name in shape.types}
        return {
            "format": self.format.kind,
            "subject": self.subject,
            "latest": self.latest.id,
            "schemas": schemas,
            # A mapping may lose its order on the way.
            "versions": [version.id for version, _ in self.versions],
            "whole": self.is_whole,
            "names": {name: column for name, column in self.format.names.items() if name in fields},
            **(
                {}
                if self.other_keys is None
                else {"other_keys": {str(key): why for key, why in self.other_keys.items()}}
            ),
            **self.format.settings(),
        }


_OTHER_SHAPE = "by one of them a value is one column, by the other each of its properties"


def pin(format_: Format, subject: str, whole: str, place: Endpoint, chosen: Collection[str] | None = None) -> Pinned:
    """Return the schemas of a subject, by the registry as it is now; ``whole`` names the column of a single value.

    ``chosen``: the columns that are read, ``None`` for all.
    """
    versions = Registry(endpoint=place).versions(subject)
    strange = [each for each in versions if each.type != format_.schema_type]
    if strange or not versions:
        what = f"is of type {strange[-1].type}" if strange else "has no version"
        raise SourceRefused(
            f"Subject {subject} of the schema registry at {place.host} {what}, and {format_.label} needs "
            f"schemas of type {format_.schema_type}."
        )
    if whole == KEY:
        # A key is one column, whose name is given.
        format_ = replace(format_, names={})
    with _name_version(versions[-1], subject):
        resolved: Format = format_.resolve(versions[-1])
    shapes = [_read_shape(resolved, each, subject, whole) for each in versions]
    found = merge(resolved, subject, tuple(zip(versions, shapes, strict=True)), format_, chosen)
    return replace(found, other_keys=_find_other_keys(found)) if whole == KEY else found


def _find_other_keys(pinned: Pinned) -> dict[int, str]:
    """Return why keys of some schemas are no keys of the latest one, by the schema's id."""
    reasons = {
        version.id: pinned.format.other_key(version, pinned.latest)
        for version, _ in pinned.versions
        if version.id not in pinned.misfits
    }
    latest = pinned.latest.id
    return {
        each: f"its key by schema {each} is no key of schema {latest}: {why}" for each, why in reasons.items() if why
    }


def _read_shape(format_: Format, version: Version, subject: str, whole: str) -> Shape:
    with _name_version(version, subject):
        return format_.shape(version, whole)


@contextmanager
def _name_version(version: Version, subject: str) -> Iterator[None]:
    """Raise ``SourceRefused`` for a version that cannot be read."""
    try:
        yield
    except InvalidDeclaration as error:
        raise SourceRefused(f"Version {version.number} of subject {subject} cannot be read. {error}") from error


def merge(
    format_: Format,
    subject: str,
    versions: tuple[tuple[Version, Shape], ...],
    declared: Format | None = None,
    chosen: Collection[str] | None = None,
) -> Pinned:
    """Return the columns that these versions make together, and which of them do not fit the latest.

    ``declared``: the format without what the latest version adds to it, if that is another one. ``chosen``: the columns
    that are read, ``None`` for all.
    """
    names = _columns_by_field(format_, subject, [shape for _, shape in versions], chosen)
    types: dict[str, str | None] = {}
    latest, last = versions[-1]
    misfits: dict[int, str] = {}
    for version, shape in reversed(versions):
        reasons = [
            f"field {name} is {type_} and not {types[name]}"
            for name, type_ in shape.types.items()
            if name in names and not is_held(type_, types.get(name))
        ]
        if shape.is_whole != last.is_whole and not format_.mixes:
            reasons = [_OTHER_SHAPE]
        if shape.misfit:
            reasons = [shape.misfit]
        if reasons:
            misfits[version.id] = f"its schema {version.id} does not fit schema {latest.id}: {'; '.join(reasons)}"
            continue
        types |= {name: type_ for name, type_ in shape.types.items() if name in names and types.get(name) is None}
    return Pinned(
        format=format_,
        declared=declared or format_,
        subject=subject,
        versions=versions,
        columns={column: types[name] or "text" for name, column in names.items() if name in types},
        misfits=misfits,
        chosen=chosen,
    )


def _columns_by_field(
    format_: Format, subject: str, shapes: Sequence[Shape], chosen: Collection[str] | None
) -> dict[str, str]:
    """Return the column of each field that is read; :class:`InvalidDeclaration` where two fields would be one."""
    fields: dict[str, str] = {}
    for name in dict.fromkeys(name for shape in shapes for name in shape.types):
        column = format_.names.get(name, name)
        if chosen is not None and column not in chosen:
            continue
        other = fields.setdefault(column, name)
        if other != name:
            raise InvalidDeclaration(
                f"The fields {other} and {name} of subject {subject} would both be the column {column}: give one of "
                "them another name with names= of the format."
            )
    return {name: column for column, name in fields.items()}


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
    single = all(shape.is_whole for _, shape in pinned.versions) and pinned.columns[KEY] != "json"
    return Column(name=KEY, type=pinned.columns[KEY] if single else "text")


def to_columns(pinned: Pinned) -> Sequence[Column]:
    """Return the columns of values. Each may be NULL: a tombstone has none of them."""
    return [Column(name=name, type=type_) for name, type_ in pinned.columns.items()]
