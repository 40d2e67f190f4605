"""``grants``: what ``setup`` would run on PostgreSQL, for a database administrator."""

import re
from argparse import Namespace

from airflow_provider_backpressure.cli.shell import command
from airflow_provider_backpressure.exceptions import InvalidDeclaration
from airflow_provider_backpressure.ledger.rights import granted

NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@command
def grants(args: Namespace) -> None:
    """Print the SQL that makes the restricted role. The password is for whoever runs it to choose."""
    role, schema = checked(args.role), checked(args.schema)
    for statement in (f"CREATE ROLE {role} LOGIN PASSWORD '<password>'", *granted(role, schema=schema)):
        print(f"{statement};")


def checked(name: str) -> str:
    """Return a name that needs no quotes; :class:`InvalidDeclaration` for another."""
    if not NAME.fullmatch(name):
        raise InvalidDeclaration(f"A name must consist of small letters, digits and underscores here, not {name!r}.")
    return name
