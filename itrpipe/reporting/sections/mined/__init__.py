"""Scores of mined lists, how many of their candidates are true, and what some look like."""
