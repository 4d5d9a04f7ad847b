"""The process that Spark forks Python workers from, with what our tasks import: `spark.python.daemon.module`.

A worker imports in seconds what a forked one has at once. Nothing here starts a thread or opens a connection.
"""

import gc

from pyspark.daemon import manager

import hindcast.engine.increments
import hindcast.engine.task
import hindcast.engine.version_tasks
import hindcast.formats.spark_decoding
import hindcast.ingest.client_segments
import hindcast.ingest.record_tasks
import hindcast.store.change_tasks
import hindcast.streams.task  # noqa: F401  # loaded for the workers
from hindcast.common.jit import load_compiler

if __name__ == "__main__":
    load_compiler()
    gc.freeze()
    manager()
