"""Maps over data: a stage says once what can be made apart, and every machine makes it with the same bytes.

`work.py` is what a stage defines, `run.py` what it calls, also for one job's share of the parts; `local.py` makes parts
in this process or in several of this machine, `ray.py` on a Ray cluster.
"""
