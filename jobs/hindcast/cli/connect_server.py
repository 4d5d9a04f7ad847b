"""spark-submit connect_server.py: serve Spark Connect until Spark ends; all sessions share Python workers.

Spark's own server starts Python workers for every session: seconds for each task of Airflow, and processes that stay
when the session ends (SPARK-54055). In return it keeps files and classes that clients add apart; ours add none.
"""

from hindcast import __version__
from hindcast.common.spark_connect import VERSION_PROPERTY

SETTINGS = {
    VERSION_PROPERTY: __version__,
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.python.daemon.module": "hindcast.cli.worker_daemon",
}

if __name__ == "__main__":
    import sys

    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder.getOrCreate()
    sys.stdin.read()  # Spark's process holds the other end
