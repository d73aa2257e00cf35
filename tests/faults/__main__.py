"""`make faults`: faults of every kind, tried on a small chain of commands, and one table of what they broke."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections import Counter

# Kind -> trials of the short campaign: about a minute of two cores.
KINDS = {"kills": 8, "renames": 12, "writers": 3, "disk": 4, "bytes": 12, "folders": 12, "inputs": 12}
KINDS |= {"pipes": 3, "copies": 4, "requests": 1}


def main() -> int:
    options = _options()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ |= {"ARROW_DEFAULT_MEMORY_POOL": "system", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    from tests.faults import around, bits, disks, folders, inputs, kills, server
    from tests.faults.chain import SHORT, Chain, new_folder
    from tests.faults.trials import SORTS, run_all

    begun, folder = time.monotonic(), new_folder(options.keep)
    print(f"seed {options.seed}, files in {folder}", flush=True)
    server.warm()
    chain = Chain(new_folder(str(folder)), SHORT if options.short else ())
    chain.make()
    print(f"the chain is made, {time.monotonic() - begun:.0f} s", flush=True)
    makers = {
        "kills": lambda: kills.random_kills(chain, options.kills // 2, options.seed),
        "renames": lambda: kills.kills_at_steps(chain, options.kills - options.kills // 2),
        "writers": lambda: kills.several_writers(chain),
        "disk": lambda: disks.trials(chain, folder),
        "bytes": lambda: bits.trials(chain),
        "folders": lambda: folders.trials(chain),
        "inputs": lambda: inputs.trials(chain),
        "pipes": lambda: around.pipes(chain),
        "copies": lambda: around.copies(chain),
        "requests": lambda: around.requests(chain),
    }
    trials = []
    for kind in options.only:
        found = makers[kind]()
        chosen = min(KINDS[kind], len(found)) if options.short else len(found)
        trials += [found[row * len(found) // chosen] for row in range(chosen)]
    table = run_all(trials, folder, options.seed, options.workers, keep=options.keep is not None)
    columns = ("tried", *SORTS)
    print("\n" + "".join(f"{name:>12}" for name in ("", *columns)))
    for kind, counts in [*table.items(), ("all", sum(table.values(), Counter()))]:
        print(f"{kind:>12}" + "".join(f"{counts[name]:>12,}" for name in columns))
    print(f"seed {options.seed}, {time.monotonic() - begun:.0f} s")
    if options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(any(counts[sort] for counts in table.values() for sort in SORTS))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kills", type=int, default=720, help="at random moments and at steps, in all")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(KINDS), help=",".join(KINDS))
    parser.add_argument("--short", action="store_true", help="some of every kind, on a shorter chain")
    parser.add_argument("--keep", metavar="FOLDER", help="leave there what the trials that found something made")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    if unknown := set(options.only) - set(KINDS):
        parser.error(f"--only: there is no {', '.join(unknown)}")
    return options


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries that were imported and never used complain at a regular end
