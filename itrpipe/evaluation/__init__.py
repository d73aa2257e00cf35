"""Metrics of image-text retrieval, one per file: they read score matrices and ranks, never a model, with numpy only."""
