"""Importers of features that others have published, one file each; the file stem is the `kind` of its settings."""
