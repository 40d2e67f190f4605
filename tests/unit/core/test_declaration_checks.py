"""What cannot be meant is refused when the DAG is parsed, in a sentence that names the argument."""

import copy
import pickle
from dataclasses import replace

import pytest

from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.sinks import DeltaSink, ParquetSink, PostgresSink
from airflow_provider_backpressure.sources import KafkaSource, MySQLSource, PostgresSource
from airflow_provider_backpressure.task_groups import hydrate

SOURCE, SINK = PostgresSource(conn_id="shop", table="public.orders"), PostgresSink(conn_id="dwh", table="raw.orders")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PostgresSource("shop", "t"), "PostgresSource takes its arguments by name, as in PostgresSource(conn"),
        (lambda: ParquetSink("s3://a"), "ParquetSink takes its arguments by name, as in ParquetSink(path="),
        (lambda: PostgresSource(conn_id="shop", tabel="t"), "has no argument tabel: did you mean table?"),
        (lambda: PostgresSink(conn_id="dwh", nonsense=1), "has no argument nonsense: it takes conn_id"),
        (lambda: KafkaSource(conn_id="k"), "KafkaSource needs topic."),
        (lambda: PostgresSource(conn_id="shop", table=3), "PostgresSource.table must be a text, not 3."),
        (lambda: MySQLSource(conn_id=None, table="a.b"), "MySQLSource.conn_id must be a text, not None."),
        (lambda: PostgresSource(conn_id="shop", table="a", where=3), "where must be a text or None, not 3."),
        (lambda: KafkaSource(conn_id="k", topic="t", accept_loss="no"), "accept_loss must be True or False, not 'no'."),
        (lambda: PostgresSource(conn_id="shop ", table="a"), "conn_id has a blank at the edge of a name: 'shop '."),
        (lambda: PostgresSink(conn_id="dwh", table="raw. orders"), "table has a blank at the edge of a name"),
        (lambda: DeltaSink(path=" s3://a/b"), "DeltaSink.path has a blank at the edge of a name"),
        (lambda: KafkaSource(conn_id="k", topic="a b"), "'a b' is no name that a topic can have."),
        (lambda: KafkaSource(conn_id="k", topic="t", fields=["a"]), "must give a type to each field"),
        (lambda: KafkaSource(conn_id="k", topic="t", fields={"a": 3}), "must map names to names of types"),
        (lambda: KafkaSource(conn_id="k", topic="t", fields={"a": "bigitn"}), "did you mean bigint?"),
        (lambda: KafkaSource(conn_id="k", topic="t", fields={"a": "qqq"}), "types-kafka.md lists those there are."),
        (lambda: hydrate("shop", SINK, spark_conn_id="s"), "hydrate's source must be a source, as PostgresSource("),
        (lambda: hydrate(SINK, SOURCE, spark_conn_id="s"), "hydrate's source must be a source, as PostgresSource("),
        (lambda: hydrate(SOURCE, SOURCE, spark_conn_id="s"), "hydrate's sink must be a sink, as PostgresSink("),
        (lambda: hydrate(SOURCE, SINK, spark_conn_id=None), "hydrate's spark_conn_id must be a text, not None."),
        (lambda: hydrate(SOURCE, SINK, spark_conn_id="s", budget={"credits": 1}), "must be a Budget"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, sentence):
    with pytest.raises(InvalidDeclaration) as error:
        make()
    assert sentence in str(error.value)


class Resolved:
    """A result of a task, which Airflow resolves in the run."""

    def resolve(self):
        """See ``XComArg``."""


def test_what_a_run_makes_known_is_not_checked():
    table = Resolved()
    assert PostgresSource(conn_id="{{ var.value.shop }} ", table="{% if x %} a {% endif %}").table.startswith("{%")
    assert replace(SOURCE, table=table).table is table
    assert PostgresSource(conn_id="shop", table='"a blank "."name "').table == '"a blank "."name "'


def test_declarations_are_copied_and_pickled():
    for one in (SOURCE, SINK, KafkaSource(conn_id="k", topic="t", fields={"id": "bigint", "at": "bigint[]"})):
        assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == replace(one) == one
