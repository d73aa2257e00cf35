"""Matching with hard negatives."""
