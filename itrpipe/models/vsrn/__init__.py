"""VSRN."""
