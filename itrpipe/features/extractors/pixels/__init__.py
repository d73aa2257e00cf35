"""Decoded images."""
