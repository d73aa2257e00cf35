"""Which artifacts are there, missing or stale, and why; and what runs a plan, step by step."""
