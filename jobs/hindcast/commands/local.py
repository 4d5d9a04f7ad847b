"""Commands for contracts, and for what runs on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hindcast.errors import HindcastError
from hindcast.settings import settings
from hindcast.words import counted

if TYPE_CHECKING:
    from pathlib import Path


def check(arguments: argparse.Namespace) -> int:
    """Check contracts: all of schemas/, or the files given."""
    from hindcast.contracts import complain_of, load, paths, repeated
    from hindcast.contracts.names import sql_functions
    from hindcast.contracts.views import Complaint
    from hindcast.errors import ContractError
    from hindcast.quality import expectations

    problems = 0
    read: dict[str, Path] = {}
    makers: dict[str, Path] = {}
    for path in arguments.files or paths(settings().schemas):
        try:
            contract = load(path)
            if not (first := read.setdefault(contract.pipeline, path)).samefile(path):
                raise repeated(contract.pipeline, path, first)
            for function, table in sql_functions(contract).items():
                if not (maker := makers.setdefault(function, path)).samefile(path):
                    found = f"'{table}' makes the function {function} of Spark SQL, which {maker} makes too"
                    place = ("topics" if table in contract.topics else "views", table)
                    raise complain_of(path, Complaint(place, found, "choose another name for one of the two"))
            for complaint in expectations.complaints(contract):
                raise complain_of(path, complaint)
            told = counted(len(contract.topics), "topic"), counted(len(contract.views), "view")
            print(f"{path}: {', '.join(told)}, fine")
        except HindcastError as error:
            problems += 1
            print(f"hindcast: {error}", file=sys.stderr)
        except Exception as error:  # of what expectations make of a gate: the other files are checked all the same
            problems += 1
            wrong = ContractError(f"cannot be checked: {type(error).__name__}: {error}", where=f"{path}:1")
            print(f"hindcast: {wrong}", file=sys.stderr)
    return 1 if problems else 0


def schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema of contracts, for editors."""
    from hindcast.contracts.load import schema

    print(schema(), end="")
    return 0


def produce(arguments: argparse.Namespace) -> int:
    """Send JSON lines to a Kafka topic, made if it is not there."""
    from hindcast.kafka import lines, produce

    records = list(lines.records(arguments.file))  # what is wrong with one shows before any is sent
    produce.create(settings().kafka, arguments.topic, partitions=arguments.partitions)
    sent = produce.send(settings().kafka, arguments.topic, records)
    print(f"{counted(sent, 'record')} sent to {arguments.topic}")
    return 0


def up(_: argparse.Namespace) -> int:
    """Start the broker, Spark and Airflow here, and say where to look."""
    from hindcast.local import stack

    stack.up(settings())
    return 0


def down(_: argparse.Namespace) -> int:
    """Stop what `hindcast up` started."""
    from hindcast.local import stack

    stack.down(settings())
    return 0


def demo(_: argparse.Namespace) -> int:
    """Run the three example pipelines through Airflow, twice, and show what was believed when."""
    from hindcast import demo

    return demo.main()


def conformance(arguments: argparse.Namespace) -> int:
    """Run the conformance vectors of a folder through the operators."""
    from hindcast.conformance import conformance
    from hindcast.session import session

    return conformance(session("hindcast conformance"), arguments.directory, arguments.out)
