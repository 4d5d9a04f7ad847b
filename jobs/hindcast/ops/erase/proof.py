"""Prove that something is forgotten: read every file of a pipeline and of its reports, and find it in none.

A file is read as bytes. Of Parquet files (tables, checkpoints) all rows are read too, whether the table has them or
not, and the dictionaries by which they were written; of a report's page what it has compressed. No file may be there
that does not belong to its table: that also covers what no search can find, such as numbers and timestamps.

A text that other records in the log have too is `shared`: they said it. So is one that files say of themselves: words
of the contract, of a table, or of the file formats.
"""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hindcast.common.errors import escape_controls
from hindcast.common.json_values import JsonValue, StoredObject
from hindcast.ops.erase import purge
from hindcast.ops.erase.readers import Readers, describe_readers
from hindcast.ops.erase.texts import search_pattern, spellings
from hindcast.plan import lease
from hindcast.plan.purposes import Erasure
from hindcast.store.folder import WarehouseFolder

FORMAT_WORDS = (
    "null true false string long integer double decimal boolean binary timestamp date struct array nullable metadata "
    "accepted expired malformed null_key no_timestamp time_skew no_change gone no_record forgotten requeued "
    "open past superseded held released rejected mended stopped warned failed passed unchecked error "
    "planned completed abandoned add remove commitInfo protocol metaData minValues maxValues nullCount numRecords "
    "pipeline run knownAt table sha256 rows readers redefined unread lostSince files bytes rowsLeft texts shared "
    "old left proven "
    "WRITE MERGE DELETE CREATE TABLE Append Overwrite Serializable SnapshotIsolation parquet delta spark snappy UTC"
)
"""Words that our files and their formats contain whatever the records are."""

_TEXTS_AT_ONCE, _SOUGHT_LENGTH = 1_000, 50
"""How many texts are in one pattern, and how many characters of each: RE2 compiles no larger ones."""

_COMPRESSED = re.compile(rb"[A-Za-z0-9+/]{200,}={0,2}")


@dataclass
class SearchResult:
    """What a search has read, and by text the names of the files in which it was found."""

    files: int = 0
    size: int = 0
    rows: int = 0
    orphan_files: list[str] = field(default_factory=list)
    """Data files that belong to no table."""
    places: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


class LeftText(NamedTuple):
    """A text that was to be forgotten, and the names of the files that still have it."""

    sha256: str
    files: tuple[str, ...]


class Evidence(NamedTuple):
    """The outcome of a search without the texts: how much it read, what is `left`, and where.

    `texts`: how many were sought, of which `shared` are said by others too. `rows_left`: the rows of what was to go;
    `orphan_files`: data files that belong to no table.
    """

    rows_left: int
    files: int
    size: int
    rows_read: int
    texts: int
    shared: int
    orphan_files: tuple[str, ...]
    left: tuple[LeftText, ...]

    @property
    def is_proven(self) -> bool:
        """True if nothing is left."""
        return not (self.left or self.orphan_files or self.rows_left)

    def as_json(self) -> dict[str, JsonValue]:
        """Return its part of a stored proof."""
        return {
            "proven": self.is_proven,
            "rowsLeft": self.rows_left,
            "files": self.files,
            "bytes": self.size,
            "rowsRead": self.rows_read,
            "texts": self.texts,
            "shared": self.shared,
            "old": self.orphan_files,
            "left": [text._asdict() for text in self.left],
        }

    @classmethod
    def from_json(cls, document: StoredObject) -> Evidence:
        """Return the evidence from a stored proof."""
        read = document["rowsLeft"], document["files"], document["bytes"], document["rowsRead"]
        left = tuple(LeftText(text["sha256"], tuple(text["files"])) for text in document["left"])
        return cls(*read, document["texts"], document["shared"], tuple(document["old"]), left)


@dataclass(frozen=True)
class Proof:
    """The proof that a run has forgotten something: how many `rows` of which tables it removed, and the evidence.

    `table`: the topic, with its pipeline; `sha256`: what stands for the request; `readers`: views of other pipelines
    that are made of it (`readers.find_readers`); `redefined`: tables with rows of earlier definitions that could not be
    looked for (`ErasedRows.find_redefined`); `unread`: files of contracts that are invalid, and may read it too;
    `lost_since`: since when a key has lost its value (`records.find_lost_since`).
    """

    pipeline: str
    run: int
    known_at: datetime
    table: str
    sha256: str
    rows: Mapping[str, int]
    readers: tuple[str, ...]
    evidence: Evidence
    redefined: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    lost_since: datetime | None = None

    @property
    def is_proven(self) -> bool:
        """True if everything could be looked at, and nothing is left."""
        return self.evidence.is_proven and not self.redefined

    @property
    def erasure(self) -> Erasure:
        """What the run forgot."""
        return Erasure(self.table.partition(".")[2], self.sha256)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form in which it is stored."""
        head: dict[str, JsonValue] = {"pipeline": self.pipeline, "run": self.run, "knownAt": self.known_at.isoformat()}
        head |= {"table": self.table, "sha256": self.sha256, "rows": self.rows, "readers": self.readers}
        head |= {"redefined": self.redefined, "unread": self.unread}
        head |= {"lostSince": self.lost_since.isoformat() if self.lost_since else None}
        return head | self.evidence.as_json() | {"proven": self.is_proven}

    @classmethod
    def from_json(cls, document: StoredObject) -> Proof:
        """Return the proof from its stored form."""
        run = document["pipeline"], document["run"], datetime.fromisoformat(document["knownAt"])
        request = document["table"], document["sha256"]
        readers, redefined = tuple(document["readers"]), tuple(document.get("redefined", ()))
        evidence, unread = Evidence.from_json(document), tuple(document.get("unread", ()))
        lost_since = datetime.fromisoformat(lost) if (lost := document.get("lostSince")) else None
        return cls(*run, *request, document["rows"], readers, evidence, redefined, unread, lost_since)


def search_files(folder: WarehouseFolder, live: Collection[str], reports: Path, sought: Iterable[str]) -> SearchResult:
    """Read every file of a pipeline's folder and of its reports; return where the texts `sought` were found.

    `live`: the data files that tables have. Notices of activities (`plan.notices`) are left out: they hold no texts of
    records, and come and go.
    """
    stored = {path for name in folder.tables for path in purge.list_data_files(folder, name)}
    result, texts = SearchResult(orphan_files=sorted(stored - {*live})), sorted(sought)
    for file in folder.list_files():
        if not file.path.startswith(f"{lease.FOLDER}/"):
            _search_file(result, file.path, folder.read(file.path), texts)
    for path in sorted(reports.rglob("*")) if reports.is_dir() else []:
        if path.is_file():
            _search_file(result, f"reports/{path.relative_to(reports)}", path.read_bytes(), texts)
    return result


def weigh_evidence(
    result: SearchResult,
    live: Collection[str],
    sought: Collection[str],
    vocabulary: str,
    rows: int,
    topics: Iterable[str],
) -> Evidence:
    """Return the outcome of a search.

    `live`: as for `search_files`. `topics`: those of the contract, whose logs no longer have a forgotten record; that
    of a topic that has left the contract can still have it. `vocabulary`: what files say of themselves. `rows`: how
    many rows are left of what was to go.
    """
    others = {path for path in live if path.startswith(tuple(f"logs/{topic}/" for topic in topics))}
    said = {text for text, places in result.places.items() if text in vocabulary or places & others}
    # One spelling in a log is enough: there a quote in a key stands escaped, in a table it does not.
    said |= {term for text in sought if not said.isdisjoint(spellings(text)) for term in spellings(text)}
    shared, left = said & result.places.keys(), result.places.keys() - said
    found = tuple(
        LeftText(sha256(text.encode()).hexdigest(), tuple(sorted(result.places[text]))) for text in sorted(left)
    )
    counts = rows, result.files, result.size, result.rows, len(set(sought)), len(shared)
    return Evidence(*counts, tuple(sorted(result.orphan_files)), found)


def _search_file(result: SearchResult, name: str, content: bytes, texts: list[str]) -> None:
    result.files += 1
    result.size += len(content)
    if not texts:
        return
    parts = [content, *_unpack_page(content)] if name.endswith(".html") else [content]
    for text in texts:
        if any(text.encode() in part for part in parts):
            result.places[text].add(name)
    if name.endswith(".parquet") and content:
        for text in _search_rows(result, content, texts):
            result.places[text].add(name)


def _unpack_page(page: bytes) -> Iterator[bytes]:
    for packed in _COMPRESSED.findall(page):
        try:
            yield zlib.decompress(base64.b64decode(packed))
        except (ValueError, zlib.error):
            continue


def _search_rows(result: SearchResult, content: bytes, texts: list[str]) -> set[str]:
    """Return the texts that are in rows of a Parquet file, or in its dictionaries."""
    pieces = [texts[n : n + _TEXTS_AT_ONCE] for n in range(0, len(texts), _TEXTS_AT_ONCE)]
    patterns = [search_pattern({text[:_SOUGHT_LENGTH] for text in piece}) for piece in pieces]
    hits = set[str]()
    schema = pq.read_schema(io.BytesIO(content))
    plain = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]
    file = pq.ParquetFile(io.BytesIO(content), read_dictionary=plain)
    result.rows += file.metadata.num_rows
    for group in range(file.num_row_groups):
        columns = file.read_row_group(group).columns
        parts = [part.cast(pa.large_string()) for column in columns for part in _list_texts(column)]
        values = pa.concat_arrays([pa.array([], pa.large_string()), *parts])
        for piece, pattern in zip(pieces, patterns, strict=True):
            matched = values.filter(pc.match_substring_regex(values, pattern)).unique().to_pylist()
            hits |= {text for text in piece if any(text in value for value in matched)}
    return hits


def _list_texts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield all texts and bytes in a column, however nested, and those of its dictionaries; as texts."""
    for chunk in column.chunks:
        yield from _flatten_values(chunk)


def _flatten_values(values: pa.Array) -> Iterator[pa.Array]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        yield from _flatten_values(values.dictionary)
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            yield from _flatten_values(part)
    elif pa.types.is_map(kind):
        yield from _flatten_values(values.keys)
        yield from _flatten_values(values.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _flatten_values(values.flatten())
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [value.decode("utf-8", "replace") for value in values.drop_null().unique().to_pylist()]
        yield pa.array(texts, pa.string())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        yield values.drop_null().unique()


def format_proof(proof: Proof) -> str:
    """Return a proof as lines for a terminal."""
    found = proof.evidence
    lines = [f"{proof.pipeline}, run {proof.run}: {proof.table}, key of sha256 {proof.sha256}", ""]
    lines += [f"  {name:<28} {n:>8,} rows" for name, n in proof.rows.items()]
    lines += ["", f"  searched: {found.files:,} files, {found.size:,} bytes, {found.texts:,} texts"]
    lines += [f"  of the texts other records have {found.shared:,} too"] if found.shared else []
    if proof.is_proven:
        lines.append("  found: nothing")
    lines += [f"  left: a text of sha256 {text.sha256[:12]} in {', '.join(text.files)}" for text in found.left]
    lines += [f"  left: {found.rows_left:,} rows of it"] if found.rows_left else []
    lines += [f"  left: {path} belongs to no table" for path in found.orphan_files]
    readers = describe_readers(Readers(proof.readers, proof.unread))
    lost = describe_lost_value(proof.lost_since)
    notes = (*describe_redefined(proof.redefined), *lost, *UNREACHED_COPIES, *readers)
    lines += ["", *(f"  {line}" for line in notes)]
    return escape_controls("\n".join(lines))


UNREACHED_COPIES = (
    "Kafka still has the records, until its retention or a tombstone takes them; this pipeline has passed them.",
    "Copies elsewhere stay: backups, clones, Airflow's XComs and task logs of keys that were held back.",
)
"""Copies that an erasure cannot reach."""


def describe_redefined(views: Sequence[str]) -> list[str]:
    """Return what to do about tables whose earlier definitions could not be followed, as lines."""
    if not views:
        return []
    return [
        f"Not proven: {', '.join(views)} can have rows that cannot be found.",
        "They were derived by an earlier contract, or from rows that were trimmed or removed with their folder.",
        "Remove these folders, run the pipeline (it derives the tables without a past), and forget again.",
    ]


def describe_lost_value(since: datetime | None) -> list[str]:
    """Return what it means for its key that a record is gone that was in force at a log's horizon, as lines."""
    if since is None:
        return []
    return [
        f"The key of such a record has no value from {since.isoformat()} until its next record: it was in force",
        "at the horizon, and the records of its key before it were trimmed, unless they came later than the trim.",
    ]


def read_proofs(reports: Path) -> list[Proof]:
    """Return the proofs among the `reports` of a pipeline; without those that are no longer whole."""
    proofs = []
    for path in sorted(reports.glob("forget-*.json")):
        with suppress(ValueError, KeyError):
            proofs.append(Proof.from_json(json.loads(path.read_text(encoding="utf-8"))))
    return proofs


def proof_path(reports: Path, run: int) -> Path:
    """Return where a proof is stored among the `reports` of its pipeline."""
    return reports / f"forget-{run}.json"
