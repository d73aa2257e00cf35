"""Judging the mined lists of Flickr30K's size by given vectors of captions, beside the bare products of these.

Lists of 60 captions an image and 12 images a caption are drawn at random, which is the worst case: mined lists name
several captions of one image, and these are compared once. Time is that of the processor, in a process of its own.
"""

from __future__ import annotations

import json
import time

import numpy as np
from measure import apart, most_memory, show

from itrpipe.judging.captions import CaptionsJudge
from itrpipe.judging.material import Material

IMAGES, CAPTIONS_PER_IMAGE, DIM = 29_000, 5, 384
NUM_TEXTS, NUM_IMAGES = 60, 12
MOST_SECONDS, MOST_MEMORY = 180.0, 2e9
"""Seconds of all cores together, 90 on two of them; bytes with the vectors."""


def measured() -> dict[str, float]:
    """Judge all pairs; then multiply as many vectors that lie one behind the other."""
    texts = IMAGES * CAPTIONS_PER_IMAGE
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((texts, DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    owners = np.repeat(np.arange(IMAGES), CAPTIONS_PER_IMAGE)
    images = [np.repeat(np.arange(IMAGES), NUM_TEXTS), rng.integers(IMAGES, size=texts * NUM_IMAGES)]
    captions = [rng.integers(texts, size=IMAGES * NUM_TEXTS), np.repeat(np.arange(texts), NUM_IMAGES)]
    pairs = np.concatenate(images), np.concatenate(captions)

    start = time.process_time()
    judge = CaptionsJudge(vectors, Material([""] * texts, owners, IMAGES))
    scores = judge(*pairs)
    seconds = time.process_time() - start
    memory = most_memory()

    others = len(scores) // IMAGES * CAPTIONS_PER_IMAGE
    start = time.process_time()
    for image in range(IMAGES):
        np.matmul(vectors[:others], vectors[image * CAPTIONS_PER_IMAGE : (image + 1) * CAPTIONS_PER_IMAGE].T)
    products = time.process_time() - start
    return {"pairs": len(scores), "seconds": seconds, "products": products, "memory": memory}


def test_judging_against_bare_products() -> None:
    (found,) = apart(__file__)
    amount = f"{found['seconds']:.0f} s of the processor, {found['memory'] / 1e9:.1f} GB"
    show(f"judging {found['pairs']:,} pairs by captions", found["seconds"], found["products"], "bare products", amount)
    assert found["seconds"] < MOST_SECONDS
    assert found["memory"] < MOST_MEMORY


if __name__ == "__main__":
    print(json.dumps(measured()))
