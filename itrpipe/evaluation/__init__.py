"""Metrics of image-text retrieval, one per file. They read score matrices and ranks, never a model, and use numpy only."""
