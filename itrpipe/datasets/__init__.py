"""Captions and images: readers of published formats, the embedded `scenes`, vocabularies and batches."""
