"""Plots over epochs, K and ranks."""
