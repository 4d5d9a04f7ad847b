"""The invariants of tables, checked on the tables themselves (docs/verify.md)."""
