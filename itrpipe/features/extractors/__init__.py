"""Extractors of visual features, one file each; the file stem is the `kind` of its settings."""
