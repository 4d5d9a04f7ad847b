"""The jars of ivy.xml, retrieved with the Ivy that pyspark brings."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from hindcast.setup.commands import SetupError, retry_command

FIX = "is Maven Central reachable? A mirror of your own: set its root in ivysettings.xml"


class JarSource(NamedTuple):
    """What jars are retrieved with: a `java`, the folder of pyspark, the one with ivy.xml and ivysettings.xml."""

    java: Path
    pyspark: Path
    ivy: Path

    def retrieve_jars(self, folder: Path, environ: Mapping[str, str], *configurations: str) -> None:
        """Write the jars of these configurations into folders of their names, in a folder that has nothing else.

        Raise SetupError if they cannot be retrieved, or are not complete.
        """
        home = environ.get("XDG_CACHE_HOME")
        cache = (Path(home) if home else Path.home() / ".cache") / "hindcast" / "ivy"
        program = [str(self.java), f"-Dhindcast.ivy.cache={cache}", "-cp", f"{self.pyspark / 'jars'}/*"]
        files = ["-settings", str(self.ivy / "ivysettings.xml"), "-ivy", str(self.ivy / "ivy.xml")]
        wanted = ["-confs", *configurations, "-sync", "-retrieve", f"{folder}/[conf]/[artifact]-[revision].[ext]"]
        command = [*program, "org.apache.ivy.Main", *files, *wanted]
        retry_command(command, environ, FIX, count="[SUCCESSFUL ]", counted="downloaded")
        found = {f"{jar.parent.name}/{jar.name}": jar.stat().st_size for jar in sorted(folder.glob("*/*.jar"))}
        broken = [name for name in found if not zipfile.is_zipfile(folder / name)]
        named = list_named_jars((self.ivy / "ivy.xml").read_text(encoding="utf-8"), *configurations)
        missing = [name for name in named if name not in found]
        if broken or missing:
            shutil.rmtree(cache, ignore_errors=True)
            raise SetupError(
                f"the jars are not complete: missing {', '.join(missing) or 'none'}; "
                f"broken {', '.join(broken) or 'none'}\n  what to do: try again (the cache {cache} was removed)"
            )
        (folder / "manifest.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"      {len(found)} jars, {sum(found.values()) / 2**20:.0f} MiB", flush=True)


def list_named_jars(ivy: str, *configurations: str) -> list[str]:
    """Return the jars that ivy.xml itself names for these configurations, as `conf/name-revision.jar`."""
    every = ET.fromstring(ivy).iter("dependency")  # noqa: S314  # our own file
    named = [it for it in every if it.find("artifact") is None]  # else what it takes is no jar
    with_conf = [(d.get("conf", "").split("->")[0], d) for d in named]
    return [f"{conf}/{d.get('name')}-{d.get('rev')}.jar" for conf, d in with_conf if conf in configurations]


def has_all_jars(folder: Path) -> bool:
    """Return whether a folder has all jars that were retrieved into it, each with its size."""
    try:
        retrieved = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in retrieved.items())
    except (OSError, ValueError):
        return False
