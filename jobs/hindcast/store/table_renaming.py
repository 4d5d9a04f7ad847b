"""Give a table of a pipeline to another pipeline: one commit, which changes the table's name and its transaction ids.

A table's name in Delta's metadata begins with that of its pipeline, and so do the application ids of the commits of
runs (`Table.app_id`). The commit repeats each id under the new name, with its version: a run that has committed does
not commit again. No row and no file changes. The table stays where it is, on a disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from hindcast.common.json_values import JsonObject
from hindcast.store import delta_log, files


def rename_table(path: str, former: str, pipeline: str, properties: Mapping[str, str] | None = None) -> None:
    """Give the table at a path, of the pipeline `former`, to another `pipeline`, with more table properties.

    Do nothing with a table that is not of the former one, as it was renamed before, nor with one without a commit.
    """
    try:
        delta_table = DeltaTable(path)
    except TableNotFoundError:  # whoever created it was killed
        return
    owner, _, name = (delta_table.metadata().name or "").partition(".")
    if owner != former:
        return
    metadata: JsonObject = {}
    ids: dict[str, int] = {}
    start = f"hindcast/{former}/"
    for kind, action in delta_log.read_actions(delta_table, ("metaData", "txn")):
        if kind == "metaData" and action["id"]:
            metadata = action
        elif kind == "txn" and str(action["appId"]).startswith(start):
            ids[f"hindcast/{pipeline}/{str(action['appId']).removeprefix(start)}"] = int(str(action["version"]))
    kept = {field: value for field, value in metadata.items() if value is not None}
    configuration = {**delta_table.metadata().configuration, **(properties or {})}
    renamed: JsonObject = {**kept, "name": f"{pipeline}.{name}", "configuration": configuration}
    has_known_features = files.has_known_features(delta_table)
    note = json.dumps({"renamedFrom": former})
    delta_log.commit_actions(delta_table, [{"metaData": renamed}], ids, note, checkpoint=has_known_features)
