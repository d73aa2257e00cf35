"""Maps over data: a stage says once what can be made apart, and every machine makes it with the same bytes.

`work.py` is what a stage defines, `run.py` what it calls; `local.py` makes parts in this process or several of this
machine, `ray.py` on a Ray cluster, and `part.py` is one job's share of them.
"""
