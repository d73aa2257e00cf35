"""Thin drivers, one per declaration: load the inputs, call the room that does the work, write the artifact."""
