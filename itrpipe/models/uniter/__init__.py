"""UNITER."""
