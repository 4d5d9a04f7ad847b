"""The form of a table's log: one that all readers understand alike, and paths of files in the table's folder only.

delta-rs and Spark read a log in ways of their own. What one passes over (a second object in a line, a column with
another case, a checkpoint that is not the first) can be what the other goes by. So whatever a reader may take from a
file of the log has to be such that it does no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import BinaryIO, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hindcast.common.errors import TableError, show_briefly
from hindcast.common.json_values import JsonObject, JsonValue, list_objects, parse_object
from hindcast.store import table_metadata
from hindcast.store.own_paths import is_plain_name, leads_out

BACKUP_FIX = "put back the table from a backup"

MAX_LINE = 16 << 20
"""The most bytes of a line of the log, which is parsed: the note of a run has a few MB at most."""

_MAX_LINES = 1_000_000
"""The most lines of a file of the log: twice the files that the largest commit names."""

_FILE_ACTIONS = ("add", "remove", "cdc")
_ACTIONS = (
    *_FILE_ACTIONS,
    "checkpointMetadata",
    "commitInfo",
    "domainMetadata",
    "metaData",
    "protocol",
    "sidecar",
    "txn",
)
_VECTOR = ("add.deletionVector.storageType", "add.deletionVector.pathOrInlineDv")
_METADATA = ("metaData.id", "metaData.schemaString")

_SPELLINGS = {
    name.lower(): name
    for name in (
        *("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags", "deletionVector"),
        *("baseRowId", "defaultRowCommitVersion", "clusteringProvider", "partitionValues_parsed", "stats_parsed"),
        *("deletionTimestamp", "extendedFileMetadata", "storageType", "pathOrInlineDv", "offset", "sizeInBytes"),
        *("cardinality", "maxRowIndex", "version", "appId", "lastUpdated", "id", "name", "description", "format"),
        *("provider", "options", "schemaString", "partitionColumns", "createdTime", "configuration", "domain"),
        *("minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures", "removed"),
    )
}
"""The fields of actions by their names in lower case, by which Spark finds the columns of a checkpoint."""

_COMMIT = re.compile(r".*/_delta_log/[0-9]{20}\.json")
"""Files whose metadata all readers take, in the same order; the last is looked at when the table is opened."""


def refuse_odd_lines(path: Path, file: BinaryIO) -> None:
    """Raise TableError unless each line of a file is the JSON of one action, with paths in the table's folder."""
    described = 0
    for number in count(1):
        if not (line := file.readline(MAX_LINE + 1)):
            return
        if number > _MAX_LINES:
            _refuse_form(str(path), f"it has more than {_MAX_LINES:,} lines")
        if not line.isspace() or b"\r" in line:
            where = f"{path}, line {number:,}"
            _refuse_foreign_action(where, action := _parse_line(line, where, BACKUP_FIX))
            if "metaData" in action:
                _refuse_odd_metadata(path, parse_object(action["metaData"]), described := described + 1)


def refuse_odd_object(path: Path, file: BinaryIO) -> None:
    """Raise TableError unless a checksum, or the hint to a checkpoint, is a JSON object with paths in the folder."""
    where = str(path)
    it = _parse_line(file.read(MAX_LINE + 1), where, f"rm {path} (readers do without it)")
    _refuse_similar(where, it)
    for fields in list_objects([value for name, value in it.items() if name.lower() == "metadata"]):
        _refuse_odd_metadata(path, fields, fix=f"rm {path} (readers do without it)")
    for fields in list_objects(it.get("allFiles")):
        _refuse_foreign_action(where, {"add": fields})
    for hint in list_objects([it.get("v2Checkpoint")]):
        _refuse_similar(where, hint)
        for fields in [hint, *list_objects(hint.get("sidecarFiles"))]:
            _refuse_foreign_action(where, {"sidecar": fields})
        for action in list_objects(hint.get("nonFileActions")):
            _refuse_foreign_action(where, action)
            if "metaData" in action:
                _refuse_odd_metadata(path, parse_object(action["metaData"]))


def _refuse_foreign_action(where: str, action: JsonObject) -> None:
    name, fields = next(iter(action.items()), ("", None))
    if len(action) != 1 or name not in _ACTIONS or not isinstance(fields, dict):
        _refuse_form(where, f"it is not one action, but {', '.join(action)}")
    _refuse_similar(where, fields)
    if name != "commitInfo":
        _refuse_spelling(where, fields)
    if name in _FILE_ACTIONS:
        _refuse_foreign_file(where, fields)
    elif name == "sidecar":
        _refuse_sidecar(where, fields.get("path"))


def _parse_line(line: bytes, where: str, fix: str) -> dict[str, JsonValue]:
    """Return the JSON object in a line, which all parsers find in it; raise TableError if there is none."""
    if len(line) > MAX_LINE or b"\r" in line:
        _refuse_form(where, f"a line has more than {MAX_LINE:,} bytes, or another end than LF", fix)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        _refuse_form(where, str(error), fix)
    return _parse_object(text, where, fix)


def _parse_object(text: str, where: str, fix: str) -> dict[str, JsonValue]:
    try:
        parsed = json.loads(text, object_pairs_hook=_build_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        _refuse_form(where, str(error), fix)
    if not isinstance(parsed, dict):
        _refuse_form(where, "it is no JSON object", fix)
    return parsed


def _build_object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"a key is there twice: {', '.join(name for name, _ in pairs)}")
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _refuse_similar(where: str, names: Iterable[str]) -> None:
    """Raise TableError for names that differ only in case: some readers take one for the other."""
    seen = [name.lower() for name in names]
    if len({*seen}) < len(seen):
        _refuse_form(where, f"names are equal, or differ only in case: {', '.join(names)}")


def _refuse_spelling(where: str, names: Iterable[str]) -> None:
    """Raise TableError for the name of an action's field in another case."""
    if odd := [name for name in names if _SPELLINGS.get(name.lower(), name) != name]:
        _refuse_form(where, f"names are spelled otherwise: {', '.join(odd)}")


def _refuse_odd_metadata(path: Path, fields: JsonObject, number: int = 1, fix: str = BACKUP_FIX) -> None:
    """Raise TableError for metadata that readers may take otherwise: one of several in a file (`number`), or not
    complete. Or that has a risk, in a file that not all of them read.
    """
    form, schema = parse_object(fields.get("format")), fields.get("schemaString")
    if number > 1 or not isinstance(fields.get("id"), str) or not isinstance(schema, str):
        _refuse_form(str(path), "its metadata is there twice, or lacks an id or a schema", fix)
    if form.get("provider", "parquet") != "parquet" or form.get("options") not in (None, {}):
        _refuse_form(str(path), "its metadata names another format than Parquet, or options of it", fix)
    columns = _parse_object(schema, str(path), fix)
    if not _COMMIT.fullmatch(path.as_posix()):
        risks = table_metadata.list_risks(columns, parse_object(fields.get("configuration")))
        table_metadata.raise_risks(risks, str(path), fix)


def _refuse_foreign_file(where: str, fields: JsonObject) -> None:
    path, vector = fields.get("path"), fields.get("deletionVector")
    if not isinstance(path, str) or leads_out(path):
        _refuse_foreign(where, path)
    if isinstance(vector, dict):
        _refuse_foreign_vector(where, vector.get("storageType"), vector.get("pathOrInlineDv"))


def _refuse_foreign_vector(where: str, storage: JsonValue, place: JsonValue) -> None:
    """Raise TableError for a deletion vector that is neither in the log nor in a file of the table's folder."""
    if storage not in ("i", "u") or not isinstance(place, str) or (storage == "u" and leads_out(place[:-_ENCODED])):
        _refuse_foreign(where, place)


_ENCODED = 20
"""The characters of the id at the end of the place of a vector."""


def _refuse_sidecar(where: str, path: JsonValue) -> None:
    if not isinstance(path, str) or not is_plain_name(path):
        found = "names a part of a checkpoint that is not in the log's own folder"
        raise TableError(found, where=f"{where}, {show_briefly(str(path))}", fix=BACKUP_FIX)


def refuse_odd_columns(path: Path, metadata: pq.FileMetaData, source: pa.NativeFile) -> None:
    """Raise TableError unless a checkpoint has the columns of Delta's actions, with paths in the table's folder.

    The texts in it are read: they have been measured before (log_limits.py).
    """
    schema = metadata.schema.to_arrow_schema()
    if other := {*schema.names} - {*_ACTIONS}:
        _refuse_form(str(path), f"it has columns that are no actions: {', '.join(sorted(other))}")
    _refuse_odd_fields(str(path), schema)
    paths = [f"{it}.path" for it in (*_FILE_ACTIONS, "sidecar") if it in schema.names]
    vector = _VECTOR if _find_type(schema, "add.deletionVector") is not None else ()
    described = _METADATA if "metaData" in schema.names else ()
    _refuse_other_types(str(path), schema, *paths, *vector, *described)
    columns, seen = [*paths, *vector, *(["metaData"] if described else [])], 0
    with pq.ParquetFile(source) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns) if columns else ():
            for name in paths:
                _refuse_foreign_paths(path, name, _take_field(batch, name))
            for storage, place in zip(*(_take_field(batch, name).to_pylist() for name in vector), strict=True):
                if (storage, place) != (None, None):
                    _refuse_foreign_vector(str(path), storage, place)
            for row in batch.column("metaData").drop_null() if described else ():
                _refuse_odd_metadata(path, _convert_metadata(path, row), seen := seen + 1, _ANEW_FIX)


_BATCH_ROWS = 4096
_ANEW_FIX = (
    "if you have removed it by ALTER TABLE since, write another checkpoint (DeltaTable(...).create_checkpoint() in "
    f"Python); else {BACKUP_FIX}"
)


def _take_field(batch: pa.RecordBatch, name: str) -> pa.Array:
    top, *others = name.split(".")
    return pc.struct_field(batch.column(top), others)


def _find_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column, or of a field in it; None if there is none."""
    found = pa.struct(schema)
    for part in name.split("."):
        if not pa.types.is_struct(found) or (index := found.get_field_index(part)) < 0:
            return None
        found = found.field(index).type
    return found


def _refuse_other_types(where: str, schema: pa.Schema, *names: str) -> None:
    """Raise TableError unless these fields are there, and texts; and the properties in metadata are a map of texts."""
    if odd := [name for name in names if not _is_text(_find_type(schema, name))]:
        _refuse_form(where, f"it has no texts in {', '.join(odd)}")
    for name in ("metaData.configuration", "metaData.format.options"):
        kind = _find_type(schema, name)
        if kind and not (pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)):
            _refuse_form(where, f"it has no map of texts in {name}")


def _is_text(kind: pa.DataType | None) -> bool:
    return kind in (pa.string(), pa.large_string())


def _convert_metadata(path: Path, row: pa.StructScalar) -> JsonObject:
    try:
        fields: JsonObject = row.as_py(maps_as_pydicts="strict")
    except KeyError as error:
        _refuse_form(str(path), f"a property is there twice: {error}")
    return fields


def _refuse_foreign_paths(where: Path, name: str, paths: pa.Array) -> None:
    if name == "sidecar.path":
        for it in paths.drop_null().to_pylist():
            _refuse_sidecar(str(where), it)
        return
    odd = paths.filter(pc.match_substring_regex(paths, _ODD))
    if (found := next(filter(leads_out, odd.to_pylist()), None)) is not None:
        _refuse_foreign(str(where), found)


_ODD = r"^/|[\x00-\x1f%:\\]|\.\."
"""What a path has that `leads_out` may find."""


def _refuse_odd_fields(where: str, fields: pa.Schema | pa.StructType) -> None:
    """Raise TableError for names of fields that Spark may take for others; those of the user's columns are his own."""
    names = [field.name for field in fields]
    _refuse_similar(where, names)
    _refuse_spelling(where, names)
    if odd := [name for name in names if not name.isascii()]:
        _refuse_form(where, f"names are none of Delta's: {', '.join(odd)}")
    for field in fields:
        if pa.types.is_struct(field.type) and field.name not in _USERS:
            _refuse_odd_fields(where, field.type)


_USERS = ("partitionValues_parsed", "stats_parsed")
"""The fields in which the names are those of the table's columns."""


def _refuse_foreign(where: str, path: JsonValue) -> NoReturn:
    found = "its log names a file out of its folder"
    raise TableError(found, where=f"{where}, {show_briefly(str(path))}", fix=BACKUP_FIX)


def _refuse_form(where: str, why: str, fix: str = BACKUP_FIX) -> NoReturn:
    found = f"cannot be read: it is not as Delta's writers write logs: {show_briefly(why)}"
    raise TableError(found, where=where, fix=fix)
