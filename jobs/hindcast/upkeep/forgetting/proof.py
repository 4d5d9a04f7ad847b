"""The proof that something is forgotten: every file of a pipeline and of its reports is read, and none says it.

A file is read as bytes. Of Parquet (tables, checkpoints) besides all rows are read, whether the table has them or not,
and the dictionaries that they were written by; of a report's page what it has compressed. And no file may be there that
does not belong to its table: so nothing is left either of what no search can find, as numbers and moments.

A text that the log has of other records too was said by these: it is `shared`. So is one that files say of themselves:
the contract's words, a table's, those of their formats.
"""

from __future__ import annotations

import base64
import io
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hindcast.delta.folder import Folder
from hindcast.upkeep.forgetting import purge
from hindcast.upkeep.forgetting.texts import pattern

WORDS = (
    "null true false string long integer double decimal boolean binary timestamp date struct array nullable metadata "
    "accepted expired malformed null_key no_timestamp time_skew no_change gone no_record forgotten requeued "
    "open past superseded held released rejected mended stopped warned failed passed unchecked error "
    "planned completed abandoned add remove commitInfo protocol metaData minValues maxValues nullCount numRecords "
    "WRITE MERGE DELETE CREATE TABLE Append Overwrite Serializable SnapshotIsolation parquet delta spark snappy UTC"
)
"""What our files and their formats say whatever the records are."""

_PACKED = re.compile(rb"[A-Za-z0-9+/]{200,}={0,2}")


@dataclass
class Found:
    """What a search has read, and where it has found what: by text the names of the files."""

    files: int = 0
    size: int = 0
    rows: int = 0
    old: list[str] = field(default_factory=list)
    """Files of data that belong to no table."""
    places: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def search(folder: Folder, live: Collection[str], reports: Path, sought: Iterable[str]) -> Found:
    """Reads every file of a pipeline's folder and of its reports. `live`: the files of data that tables have.

    A notice of what goes on beside may be taken away meanwhile (`planning.notices`): it says nothing any more.
    """
    there = {path for name in folder.tables for path in purge.data(folder, name)}
    found, texts = Found(old=sorted(there - {*live})), sorted(sought)
    for file in folder.files():
        with suppress(FileNotFoundError):
            _search(found, file.path, folder.read(file.path), texts)
    for path in sorted(reports.rglob("*")) if reports.is_dir() else []:
        if path.is_file():
            _search(found, f"reports/{path.relative_to(reports)}", path.read_bytes(), texts)
    return found


def told(found: Found, live: Collection[str], sought: Iterable[str], vocabulary: str, rows: int) -> dict[str, Any]:
    """What a search came to, without the texts: what it read; how many are `shared`; what is `left`, and where.

    `live` as for `search`; logs have no record any more that was forgotten. `vocabulary`: what files say of themselves.
    `rows`: how many rows are left of what was to go.
    """
    others = {p for p in live if p.startswith("logs/")}
    shared = {text for text, places in found.places.items() if text in vocabulary or places & others}
    left = {text: places for text, places in found.places.items() if text not in shared}
    return {
        "proven": not (left or found.old or rows),
        "rowsLeft": rows,
        "files": found.files,
        "bytes": found.size,
        "rowsRead": found.rows,
        "texts": len(set(sought)),
        "shared": len(shared),
        "old": sorted(found.old),
        "left": [
            {"sha256": sha256(text.encode()).hexdigest(), "files": sorted(places)}
            for text, places in sorted(left.items())
        ],
    }


def _search(found: Found, name: str, content: bytes, texts: list[str]) -> None:
    found.files += 1
    found.size += len(content)
    if not texts:
        return
    parts = [content, *_unpacked(content)] if name.endswith(".html") else [content]
    for text in texts:
        if any(text.encode() in part for part in parts):
            found.places[text].add(name)
    if name.endswith(".parquet") and content:
        for text in _in_rows(found, content, texts):
            found.places[text].add(name)


def _unpacked(page: bytes) -> Iterator[bytes]:
    for packed in _PACKED.findall(page):
        try:
            yield zlib.decompress(base64.b64decode(packed))
        except (ValueError, zlib.error):
            continue


def _in_rows(found: Found, content: bytes, texts: list[str]) -> set[str]:
    """The texts that rows of a Parquet file have, or its dictionaries."""
    asked, hits = pattern(texts), set[str]()
    schema = pq.read_schema(io.BytesIO(content))
    plain = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]
    file = pq.ParquetFile(io.BytesIO(content), read_dictionary=plain)
    found.rows += file.metadata.num_rows
    for group in range(file.num_row_groups):
        for column in file.read_row_group(group).columns:
            for values in _texts(column):
                matched = values.filter(pc.match_substring_regex(values, asked)).unique().to_pylist()
                hits |= {text for text in texts if any(text in value for value in matched)}
    return hits


def _texts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """All texts and bytes in a column, whatever they are in, and those of its dictionaries; as texts."""
    for chunk in column.chunks:
        yield from _flat(chunk)


def _flat(values: pa.Array) -> Iterator[pa.Array]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        yield from _flat(values.dictionary)
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            yield from _flat(part)
    elif pa.types.is_map(kind):
        yield from _flat(values.keys)
        yield from _flat(values.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _flat(values.flatten())
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [it.decode("utf-8", "replace") for it in values.drop_null().unique().to_pylist()]
        yield pa.array(texts, pa.string())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield values.drop_null().unique()
