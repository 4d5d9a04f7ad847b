"""Tables in an object store that speaks S3: HINDCAST_WAREHOUSE=s3a://BUCKET/FOLDER.

Its place and our credentials come from the variables of AWS's own tools, which Spark and delta-rs both read:

| variable | meaning |
| --- | --- |
| AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY | our credentials |
| AWS_REGION | its region |
| AWS_ENDPOINT_URL | its address, if it is not Amazon's |
| AWS_ALLOW_HTTP | `true` if that address is not https |

A Delta commit is a file that must not exist before. delta-rs writes it by a conditional PUT, If-None-Match: *. So does
Spark, with our log store (jobs/java, built by `make object-store`). Of two writers at once one is refused, whatever
machines they are on. A store without conditional writes is not safe with more than one writer.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEME = "s3a://"

LOG_STORE = "hindcast.ConditionalLogStore"
"""Our log store: Delta's own for S3 prevents conflicting commits only within one JVM."""


def spark_properties(warehouse: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark properties for a warehouse on S3; none for another warehouse."""
    if not warehouse.startswith(SCHEME):
        return {}
    properties = {"spark.delta.logStore.s3a.impl": LOG_STORE}
    if region := environ.get("AWS_REGION"):
        properties["spark.hadoop.fs.s3a.endpoint.region"] = region
    if endpoint := environ.get("AWS_ENDPOINT_URL"):
        properties["spark.hadoop.fs.s3a.endpoint"] = endpoint
        properties["spark.hadoop.fs.s3a.path.style.access"] = "true"
    return properties
