"""TAGS."""
