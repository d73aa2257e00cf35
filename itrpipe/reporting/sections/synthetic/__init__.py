"""Negative sentences that were written, with their changes. The text of a sentence stays as it is, so nothing may stand
between its pieces."""
