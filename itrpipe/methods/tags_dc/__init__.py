"""TAGS-DC."""
