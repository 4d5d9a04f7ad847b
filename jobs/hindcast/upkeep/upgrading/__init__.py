"""Store formats under a running system: tables of older ones brought to today's, and back (docs/upgrading.md)."""
