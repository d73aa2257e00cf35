"""Benchmarks of hard negatives in files: captions with sentences that look alike and are false of the image.

A reader is a module, found by its name, with

    read(folder) -> Benchmark     the pairs, as `itrpipe.datasets.benchmarks.base` checks them
    MEASURES                      names in `itrpipe.evaluation.benchmarks`
"""
