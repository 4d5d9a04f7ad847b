"""Completion of the command line in a shell: the names of contracts and tables, and the numbers of runs.

`hindcast completion bash` prints what a shell needs; the shell then starts `hindcast` for each completion.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import argcomplete
from argcomplete.shell_integration import shellcode

from hindcast.common.errors import HindcastError
from hindcast.common.settings import Settings, read_settings

Completer = Callable[..., list[str]]


def format_shell_code(shell: str) -> str:
    """Return the code that makes a shell (bash, zsh, fish) complete `hindcast`."""
    return shellcode(["hindcast"], shell=shell)


def complete(parser: argparse.ArgumentParser) -> None:
    """Print completions and end the process, if a shell asks for them; else do nothing."""
    for action in _list_actions(parser):
        named = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        find = next((find for name, find in _COMPLETERS.items() if named.startswith(name)), None)
        if find is not None and not action.option_strings:
            action.completer = find  # type: ignore[attr-defined]  # where argcomplete looks
    argcomplete.autocomplete(parser, always_complete_options=False)


def _list_actions(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001  # no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for sub in action.choices.values():
                yield from sub._actions  # noqa: SLF001


def _list_pipelines(settings: Settings) -> list[str]:
    from hindcast.contract.folder import list_contract_files, list_meant_pipelines

    return sorted({name for path in list_contract_files(settings.schemas) for name in list_meant_pipelines(path)})


def _complete_pipelines(prefix: str, **_: object) -> list[str]:
    return _list_safely(lambda settings: (name for name in _list_pipelines(settings) if name.startswith(prefix)))


def _complete_tables(prefix: str, **_: object) -> list[str]:
    """Return the pipelines, each with a dot, until there is a dot; then its tables."""

    def list_tables(settings: Settings) -> Iterable[str]:
        from hindcast.contract.folder import find

        pipeline, dot, table = prefix.partition(".")
        if not dot:
            return (f"{name}." for name in _list_pipelines(settings) if name.startswith(pipeline))
        contract = find(settings.schemas, pipeline, settings.choice)
        names = (*contract.topics, *contract.views)
        return (f"{pipeline}.{name}" for name in names if name.startswith(table))

    return _list_safely(list_tables)


def _complete_runs(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    def list_runs(settings: Settings) -> Iterable[str]:
        from hindcast.plan import journal

        numbers = (str(run.number) for run in journal.read_runs(settings.warehouse, parsed_args.pipeline))
        return (number for number in numbers if number.startswith(prefix))

    return _list_safely(list_runs)


def _list_safely(find: Callable[[Settings], Iterable[str]]) -> list[str]:
    """Return what is found; nothing if there is an error: a shell has no place for it."""
    try:
        return list(find(read_settings()))
    except (HindcastError, OSError):
        return []


_COMPLETERS: dict[str, Completer] = {
    "PIPELINE.": _complete_tables,
    "PIPELINE[.": _complete_tables,
    "PIPELINE": _complete_pipelines,
    "RUN": _complete_runs,
}
"""By the beginning of an argument's name in the help."""
