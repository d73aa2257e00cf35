"""UNITER's fine-tuning through the command line: how it is trained, and the published numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chains import UNITER, Invoke, copied, done, history, refused, sets

SMALL = ("train.max_updates=0", "train.accumulate=2", "itm.loss.sampled_negatives=11", "itm.loss.hard_negatives=3")


def test_it_is_trained_on_regions_with_boxes(boxed_chain: Path, tmp_path: Path, invoke: Invoke) -> None:
    given = ("train", "--method", "itm", "--dataset", "tiny", "--features", "boxed")
    small = sets(*UNITER[:-5], *UNITER[-4:], *SMALL, "itm.loss.sum_epochs=1")
    root = copied(boxed_chain, tmp_path / "data")
    refused(invoke(*given, "--data", root, *small, *sets("train.model.max_words=5")), 4, "raise --set max_words")
    done(invoke(*given, "--data", root, *small))
    first, last = history(root, "itm.uniter")
    assert {"loss_text_anchored", "loss_image_anchored", "mean_active_negatives"} <= first.keys()
    assert last["learning_rate"] == pytest.approx(1e-8)  # the last of the updates


@pytest.mark.parametrize(
    ("backbone", "sizes"), [("uniter", (768, 12, 12, 3072)), ("uniter-large", (1024, 24, 16, 4096))]
)
def test_the_published_numbers_are_declared(
    invoke: Invoke, tmp_path: Path, backbone: str, sizes: tuple[int, ...]
) -> None:
    shown = invoke("show", "train", "itm", "--backbone", backbone, "--dataset", "flickr30k", "--data", tmp_path)
    values = {words[0]: words[1] for line in done(shown).splitlines() if len(words := line.split()) > 2}
    names = ("model.embed_dim", "model.layers", "model.heads", "model.feed_forward_dim")
    assert tuple(int(values[name]) for name in names) == sizes
    negatives = ("loss.sampled_negatives", "loss.hard_negatives", "loss.margin")
    assert [values[name] for name in negatives] == ["399", "31", "0.2"]
    assert (values["max_updates"], values["warmup_updates"], values["learning_rate"]) == ("5000", "500", "5e-05")
