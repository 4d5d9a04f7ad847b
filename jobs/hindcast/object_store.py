"""Tables in an object store that speaks S3: HINDCAST_WAREHOUSE=s3a://BUCKET/FOLDER.

Where it is and who we are is said by the variables of AWS's own tools, which Spark and delta-rs both read:

| variable | meaning |
| --- | --- |
| AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY | who we are |
| AWS_REGION | its region |
| AWS_ENDPOINT_URL | where it is, if it is not Amazon's |
| AWS_ALLOW_HTTP | `true` if that is no https |

A commit of Delta's is a file that nobody has written before. delta-rs makes it by a conditional PUT, If-None-Match: *.
So does Spark, by a log store of ours (jobs/java, built by `make object-store`). Of two writers at once one is refused,
whichever machines they are on. A store without conditional writes is not safe with more than one writer.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEME = "s3a://"

LOG_STORE = "hindcast.ConditionalLogStore"
"""Delta's own log store for S3 keeps two commits apart within one JVM alone."""


def properties(warehouse: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What Spark has to be told of the store of a warehouse; nothing where it is a folder or another store."""
    if not warehouse.startswith(SCHEME):
        return {}
    told = {"spark.delta.logStore.s3a.impl": LOG_STORE}
    if region := environ.get("AWS_REGION"):
        told["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := environ.get("AWS_ENDPOINT_URL"):
        told["spark.hadoop.fs.s3a.endpoint"] = endpoint
        told["spark.hadoop.fs.s3a.path.style.access"] = "true"
    return told
