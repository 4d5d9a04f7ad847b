"""Upgrade tables of older store formats in a running system, and downgrade them (docs/upgrading.md)."""
