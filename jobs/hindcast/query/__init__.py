"""Questions of a published table: from DuckDB, from Spark SQL, and what is refused because it was trimmed."""
