"""BFAN."""
