"""Commands for contracts, and for what runs on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hindcast.errors import BREAKS, HindcastError, TableError, TopicError, escape_controls
from hindcast.settings import settings
from hindcast.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hindcast.contracts import Contract


def check(arguments: argparse.Namespace) -> int:
    """Check contracts: all of schemas/, or the files given."""
    from hindcast.contracts import Contract, choose_owner, complain_of, paths, read, repeated
    from hindcast.contracts.names import sql_functions
    from hindcast.contracts.views import Complaint
    from hindcast.errors import ContractError
    from hindcast.quality import expectations

    problems = 0
    files = arguments.files or paths(settings().schemas)
    contracts = {path: read(path) for path in files}
    named: dict[str, list[Path]] = {}
    for path, contract in contracts.items():
        if isinstance(contract, Contract):
            named.setdefault(contract.pipeline, []).append(path)
    owners = {pipeline: choose_owner(pipeline, same) for pipeline, same in named.items()}
    makers: dict[str, Path] = {}

    def wrong(path: Path, contract: Contract) -> Iterator[ContractError]:
        if not (first := owners[contract.pipeline]).samefile(path):
            yield repeated(contract.pipeline, path, first)
        for function, table in sql_functions(contract).items():
            if not (maker := makers.setdefault(function, path)).samefile(path):
                found = f"'{table}' makes the function {function} of Spark SQL, which {maker} makes too"
                place = ("topics" if table in contract.topics else "views", table)
                yield complain_of(path, Complaint(place, found, "choose another name for one of the two"))
        for complaint in expectations.complaints(contract):
            yield complain_of(path, complaint)

    def examine(path: Path, contract: Contract | ContractError) -> list[str]:
        """Return the lines that tell of a sound contract; HindcastError for another."""
        if isinstance(contract, ContractError):
            raise contract
        for refusal in wrong(path, contract):
            raise refusal
        warned = _check_widening(path, contract)
        if arguments.spark:
            _check_in_spark(path, contract)
        told = counted(len(contract.topics), "topic"), counted(len(contract.views), "view")
        return [f"{escape_controls(str(path), BREAKS)}: {', '.join(told)}, fine", *map(escape_controls, warned)]

    for path, contract in contracts.items():
        try:
            print(*examine(path, contract), sep="\n")
        except HindcastError as error:
            problems += 1
            print(f"hindcast: {error}", file=sys.stderr)
        except Exception as error:  # noqa: BLE001  # of what makes an expectation: the other files are checked too
            problems += 1
            found = f"cannot be checked: {type(error).__name__}: {error}"
            mend = "take out what was added last"
            print(f"hindcast: {ContractError(found, where=f'{path}:1', mend=mend)}", file=sys.stderr)
    return 1 if problems else 0


def _check_in_spark(path: Path, contract: Contract) -> None:
    """Raise ContractError for an expression that Spark refuses, as a run would before it writes anything."""
    from hindcast.building import analysis
    from hindcast.commands.shared import session_of
    from hindcast.session import sized

    spark = session_of(contract.pipeline)
    with sized(spark, 0):
        analysis.check_contract(spark, path.parent, contract)


def _check_widening(path: Path, contract: Contract) -> list[str]:
    """Return what the contract's next run would widen in the tables that are there, and what that means, in lines.

    ContractError where an entry does not consent to that. Tables that cannot be read are named in a line.
    """
    from hindcast.building import widening
    from hindcast.contracts import complain_of
    from hindcast.delta.making import LOCKED_OUT

    try:
        found = widening.find_widened(settings().warehouse, contract)
        for complaint in widening.find_complaints(settings().warehouse, contract):
            raise complain_of(path, complaint)
    except TableError as error:
        return [f"{path}: its tables were not looked at: {error}"]
    return [f"{path}: {widening.describe(name, widened)}. {LOCKED_OUT}" for name, widened in found.items()]


def schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema of contracts, for editors."""
    from hindcast.contracts.load import schema

    print(schema(), end="")
    return 0


def produce(arguments: argparse.Namespace) -> int:
    """Send JSON lines to a Kafka topic, made if it is not there."""
    from hindcast.kafka import lines, partitioning, produce
    from hindcast.kafka.topics import Cluster

    records = list(lines.records(arguments.file))  # what is wrong with one shows before any is sent
    produce.create(settings().kafka, arguments.topic, partitions=arguments.partitions)
    kafka, topic = settings().kafka, arguments.topic
    keys = {record.key for record in records if record.key is not None}
    before, placed = dict[bytes, set[int]](), dict[bytes, set[int]]()
    try:
        with Cluster(kafka) as cluster:
            before = partitioning.find_partitions(cluster, topic, keys)
    except TopicError as error:
        print(f"warning: whether other partitions have these keys was not looked at: {error.found}", file=sys.stderr)
    where = {"partitioner": arguments.partitioner, "partition": arguments.partition}
    sent = produce.send(kafka, topic, records, **where, placed=placed)
    print(f"{counted(sent, 'record')} sent to {topic}")
    if (warning := partitioning.describe_scattered(topic, placed, before)) is not None:
        print(warning, file=sys.stderr)
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
