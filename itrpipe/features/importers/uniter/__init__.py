"""UNITER's folders."""
