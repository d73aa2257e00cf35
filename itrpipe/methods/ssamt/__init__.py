"""SSAMT."""
