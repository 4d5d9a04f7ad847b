"""What peers and data are called: in results, goals and docs alike."""

OURS = "Hindcast"
COPY = "Spark: copy of the same rows"
EQUI, RANGE, WINDOW = "Spark: equi-join", "Spark: range join", "Spark: union and window"
TEMPO = "tempo 0.1.30 on Spark"
DUCKDB_ASOF, POLARS_ASOF = "DuckDB: ASOF JOIN", "Polars: join_asof"
DUCKDB_TWO, POLARS_TWO = "DuckDB: two ASOF JOINs", "Polars: two join_asof"
SPARK_SUMS, DUCKDB_SUMS, POLARS_SUMS = "Spark: running sums", "DuckDB: running sums", "Polars: running sums"
DUCKDB_WINDOWS, POLARS_WINDOWS, DUCKDB_PAIRS = "DuckDB: GROUP BY", "Polars: group_by", "DuckDB: hash join"
STREAMS = "Kafka Streams 4.3, versioned store"
BYTES = "Spark: raw bytes to Delta"
MERGE, CLOSING = "Delta: MERGE (SCD2)", "Delta: MERGE, late records appended"
SCAN = "DuckDB: scan of all files"
EMPTY = "the same DAG, empty tasks"

UNIFORM, ZIPF, HOT = KINDS = ("uniform", "zipf", "hot")
TUMBLING, HOPPING, SESSION = WINDOWS = ("tumbling", "hopping", "session")
RECORDS = "5 million"
FORMS = ("20 decimals", "40 decimals", "nested", "Debezium", "Avro")
SMALL, LARGE = "2 million", "20 million"
SUBMIT, DAG, FEW = "spark-submit", "DAG run", 10
REPLAYS = {count: f"replay of {count:,}" for count in (FEW, 1_000, 10_000)}
BUILDS = {count: f"view of {count:,}" for count in REPLAYS}
POINT, SPAN = "point", "range"

NOT_INSTALLED = "not installed (pip install 'hindcast[bench]')"
