"""Histograms of gradients and colours."""
