"""Maps over data: a stage says once what can be made apart, and every machine makes it with the same bytes.

`work.py` is what a stage defines, `run.py` what it calls, also for one job's share of the parts. Parts are made in this
process or in several of this machine, by `run.py` too, or on a Ray cluster, by `ray.py`.
"""
