"""Pretraining of UNITER."""
