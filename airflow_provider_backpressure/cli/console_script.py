"""The program ``airflow-backpressure``: the same commands where Airflow takes none from providers, as 3.1 does."""

import sys

from airflow.cli import cli_parser

from airflow_provider_backpressure.cli.definition import get_commands


def main() -> None:
    """Run ``airflow backpressure …`` with the words of the command line; usage errors exit with 2."""
    (group,) = get_commands()
    cli_parser.ALL_COMMANDS_DICT.setdefault(group.name, group)
    chosen = cli_parser.get_parser().parse_args([group.name, *sys.argv[1:]])
    chosen.func(chosen)


if __name__ == "__main__":
    main()
