"""A copy of a contract under the name of another pipeline, in a file of its own beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import yaml
from pydantic import TypeAdapter, ValidationError

from hindcast.common import targets
from hindcast.common.errors import ContractError, RequestError, show_briefly
from hindcast.common.json_values import JsonValue
from hindcast.common.settings import Settings
from hindcast.common.target_entries import Scalar
from hindcast.common.targets import Changes
from hindcast.common.yaml_loader import PlainLoader
from hindcast.contract import bounds, find
from hindcast.contract.folder import find_owners, try_find, try_load_all
from hindcast.contract.types import Name
from hindcast.contract.yaml_documents import compose_node


def copy_contract(settings: Settings, pipeline: str, name: str) -> Path | None:
    """Write the contract of a pipeline once more, as that of the pipeline `name`; return its file.

    Nothing but the name differs. Return None, and write nothing, if there is a contract of that name. Raise
    RequestError if its file exists and has another contract, if the copy would not load, or if the target would make
    another contract of it.
    """
    if _has_contract(settings, name):
        return None
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise RequestError("no pipeline can be called so", where=name, fix=f"write for example {pipeline}_2") from None
    refuse_other_changes(settings, pipeline, name)
    source = find_contract_file(settings, pipeline)
    target = source.with_name(f"{name}.yaml")
    try:
        _write_new_file(target, rename_pipeline(source, name), source)
    except FileExistsError:
        if _has_contract(settings, name):  # another process has made the same copy
            return None
        found = f"exists, and is not the contract of {name}"
        raise RequestError(found, where=str(target), fix="rename it, or take another name") from None
    try:
        find(settings.schemas, name, settings.choice)
    except ContractError as error:
        target.unlink()
        raise _build_copy_error(source, name, error.found) from None
    return target


def refuse_other_changes(settings: Settings, pipeline: str, name: str) -> None:
    """Raise RequestError if the chosen target gives two pipelines other variables, topics or severities of gates: then
    the contract of one is another one under the name of the other.
    """
    if not settings.choice.target:
        return
    target = targets.read_target(settings.schemas, settings.choice.target)
    own, other = (_list_changes(target.find_changes(it)) for it in (pipeline, name))
    if own != other:
        names = sorted({name for name, _ in own.items() ^ other.items()})
        differing = ", ".join(show_briefly(it, 60) for it in names)
        found = f"target '{target.name}' gives {pipeline} and {name} different values: {differing}"
        fix = "give both the same, each under its name in pipelines of the target"
        raise RequestError(found, where=str(settings.schemas / targets.FILE), fix=fix)


def _list_changes(changes: Changes) -> dict[str, Scalar]:
    """Return what decides about records in the changes of a target, by names."""
    return {
        **{f"variable {name}": given.value for name, given in changes.variables.items()},
        **{f"topic of {name}": given.value for name, given in changes.topics.items()},
        **{name: given.value for name, given in changes.fields.items() if name == "on_failure"},
    }


def find_contract_file(settings: Settings, pipeline: str) -> Path:
    """Return the file of the contract of a pipeline that has one."""
    return find_owners(try_load_all(settings.schemas, settings.choice))[pipeline]


def _has_contract(settings: Settings, name: str) -> bool:
    """Return whether there is a contract of a pipeline `name`; raise ContractError for one that does not load."""
    known = try_find(settings.schemas, name, settings.choice)
    if isinstance(known, ContractError):
        raise known
    return known is not None


def rename_pipeline(source: Path, name: str) -> str:
    """Return the text of a contract with another name of its pipeline; all else stays."""
    root, text = compose_node(source), bounds.read_text(source)
    keys = [key for key, _ in root.value if key.value == "pipeline"] if isinstance(root, yaml.MappingNode) else []
    body = text.removeprefix(_BYTE_ORDER_MARK)  # no mark of YAML's counts it
    for token in yaml.scan(body, Loader=PlainLoader):
        if keys and isinstance(token, _VALUE_TOKENS) and token.start_mark.index >= keys[0].end_mark.index:
            style = getattr(token, "style", None) or ""
            written = f"{name}\n" if style in ("|", ">") else f"{style}{name}{style}"
            start, end = token.start_mark.index, token.end_mark.index
            renamed = body[:start] + written + body[end:]
            if _load_others(renamed) != _load_others(body):
                raise _build_copy_error(source, name, "another field of it is an alias (*) of the pipeline's name")
            return text[: len(text) - len(body)] + renamed
    raise _build_copy_error(source, name, "it does not name its pipeline")


def _load_others(text: str) -> dict[str, JsonValue]:
    """Return the fields, but for its name, of a contract that is within the bounds of one (`compose_node`)."""
    fields: dict[str, JsonValue] = yaml.load(text, Loader=PlainLoader)  # noqa: S506  # a safe one
    return {**fields, "pipeline": None}


_BYTE_ORDER_MARK = "\ufeff"
_VALUE_TOKENS = (yaml.ScalarToken, yaml.AliasToken)


def _build_copy_error(source: Path, name: str, problem: str) -> RequestError:
    fix = f"copy it to {name}.yaml by hand, with pipeline: {name}; or take another name"
    return RequestError(f"cannot be copied by itself: {problem}", where=str(source), fix=fix)


def replace_contract(path: Path, text: str, others: Iterable[Path]) -> None:
    """Write a contract, in place of a former one if there is one, whose readers may read it; else those of another."""
    like = next(it for it in (path, *others) if it.exists())
    with _write_temporary_file(path, text, like) as temporary:
        temporary.replace(path)


def _write_new_file(target: Path, text: str, source: Path) -> None:
    """Write a contract into a file that is there as a whole, or not at all; who may read its source may read it.

    Raise FileExistsError if there is one. Nothing takes the file for a contract under its first name.
    """
    with _write_temporary_file(target, text, source) as temporary:
        _rename_to_new(temporary, target)


@contextmanager
def _write_temporary_file(target: Path, text: str, like: Path) -> Iterator[Path]:
    """Write a file beside its target, with the permissions of another one; remove it after the block."""
    temporary = target.with_name(f".{target.name}.{token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        with suppress(OSError):  # of a file system that has none
            shutil.copymode(like, temporary)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _rename_to_new(path: Path, target: Path) -> None:
    """Rename a file; raise FileExistsError if there is one of the new name."""
    try:
        os.link(path, target)  # unlike a renaming, it replaces nothing
    except FileExistsError:
        raise
    except OSError:  # not every file system has links
        if target.exists():
            raise FileExistsError(target) from None
        path.rename(target)
