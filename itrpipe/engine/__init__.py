"""Maps over data: a stage divides its work into parts once, and every machine makes each part with the same bytes.

A stage defines a `Work` (`work.py`) and calls `make_parts` (`run.py`), also for one job's share of the parts. Parts are
made in this process or in several of this machine by `run.py`, or on a Ray cluster by `ray.py`.
"""
