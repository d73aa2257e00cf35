"""SCAN."""
