"""Formats of datasets, a file a format; `annotations` recognises them and reads a dataset."""
