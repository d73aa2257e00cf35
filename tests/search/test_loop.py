"""The whole loop on the embedded dataset: judge, mine again without what fits, train, and count what fits as right."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from itrpipe.datasets.decisions import DecisionFile
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import known_pairs
from itrpipe.mining.lists import read_list
from itrpipe.review import Queue, ReviewCandidates, ranked_candidates
from tests.chains import Invoke, done, made

SIZES = ("prepare.train=60", "prepare.val=20", "prepare.test=20")
SMALL = ("train.epochs=1", "train.model.embed_dim=8", "train.model.word_dim=8")
SETTINGS = [
    part
    for text in (*SIZES, *SMALL, "mine_negatives.num_texts=20", "mine_negatives.num_images=8", "train.min_word_count=1")
    for part in ("--set", text)
]

JUDGE = ["--judge", "captions:tfidf"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loop") / "data"


def of_evaluation() -> list[str]:
    """The settings of an evaluation, which reads no mined list."""
    kept = (text for text in SETTINGS if text != "--set" and not text.startswith("mine_negatives"))
    return [part for text in kept for part in ("--set", text)]


def fits(candidates: ReviewCandidates, places: Sequence[int]) -> list[str]:
    """What somebody answers who knows the truth."""
    split = PreparedDataset.open(candidates.prepared, tokens=False).split(candidates.split)
    true = known_pairs(candidates.prepared, split.image_ids, candidates.caption_ids)
    assert true is not None
    images = split.image_ids.tolist()
    rows = [images.index(candidates.ids(place)[0]) for place in places]
    captions = np.array([candidates.pairs.caption_rows[place] for place in places])
    return ["fits" if held else "differs" for held in true.has(captions, np.array(rows))]


def judged(candidates: ReviewCandidates, file: DecisionFile) -> None:
    """All of them."""
    queue = Queue(candidates, "sample")
    places = queue.places.tolist()
    answers = zip(places, fits(candidates, places), strict=True)
    file.add([queue.judgement(place, "bob", answer) for place, answer in answers])


def judged_in_the_browser(site: Any, count: int) -> None:
    """Answers what the page shows next."""
    pages, origin = TestClient(site.app(), base_url="http://127.0.0.1"), "http://127.0.0.1"
    who = {"reviewer": "ada", "order": "sample"}
    places = [each["place"] for each in pages.get("/api/review", params=who).json()["candidates"][:count]]
    for place, answer in zip(places, fits(site.reviews.candidates, places), strict=True):
        given = {**who, "place": place, "answer": answer}
        assert pages.post("/api/review", json=given, headers={"Origin": origin}).status_code == 200


def test_the_loop(root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    sites: list[Any] = []
    monkeypatch.setattr("itrpipe.search.serve.run", lambda site, *how: sites.append(site))
    scenes = ["--dataset", "scenes", "--data", root, "--backbone", "vsepp", *SETTINGS]
    done(invoke("serve", *scenes, *JUDGE, "--no-browser", "--make"))
    judged_in_the_browser(sites[-1], 20)
    out = done(invoke("export-negatives", *scenes, "--to", root.parent / "negatives"))
    assert f"lists judged by {JUDGE[1]}" in out
    assert "for right answers" in out
    file = root / "scenes" / "decisions.parquet"
    judged(sites[-1].reviews.candidates, DecisionFile(file))
    out = done(invoke("review", *scenes, *JUDGE, "--json"))
    told = json.loads(out)
    assert told["decisions"]["reviewers"] == {"ada": 20, "bob": told["pairs"]}
    assert told["decisions"]["agreements"][0]["same"] == 1.0
    share = told["decisions"]["pairs"]["fits"] / told["pairs"]
    found = told["findings"]["share"]
    assert 0 < share == pytest.approx(found["low"]) == pytest.approx(found["high"])
    assert told["order"] == "calibration"

    outcome = invoke("mine-negatives", *scenes, *JUDGE, "--decisions", file)
    folder, out = made(outcome), outcome.out
    assert "cut by decisions" in out
    latest = done(invoke("review", *scenes))
    assert f"lists judged by {JUDGE[1]}" in latest
    assert re.search(r"[\d.]+ % of the hardest are right after all", out)
    verdicts = DecisionFile(file).read().verdicts
    for direction, other in (("texts_for_images", "images_for_texts"), ("images_for_texts", "texts_for_images")):
        anchors, candidates = read_list(folder, direction), read_list(folder, other).anchor_ids
        rows, columns = np.nonzero(anchors.candidates >= 0)
        pairs = zip(anchors.anchor_ids[rows], candidates[anchors.candidates[rows, columns]], strict=True)
        found = {pair if direction == "texts_for_images" else pair[::-1] for pair in pairs}
        assert not [pair for pair in found if verdicts.get(pair) == "fits"]

    mined = ["--set", f"mine_negatives.decisions={file}"]
    for setting in ('negatives=["mined"]', "judged=drop", f'judges=["{JUDGE[1]}"]'):
        mined += ["--set", f"contrastive.loss.{setting}"]
    mined += ["--set", "contrastive.top_texts=20", "--set", "contrastive.top_images=8"]
    out = done(invoke("train", *scenes, "--method", "contrastive", *mined))

    out = done(invoke("serve", *scenes[:6], *of_evaluation(), "--split", "test", "--no-browser", "--make"))
    judged_in_the_browser(sites[-1], 20)
    out = done(invoke("evaluate", *scenes, "--method", "contrastive", *mined, "--decisions", file))
    assert "Right after all" in out
    assert "train/contrastive.vsepp" in out, "the round that left out what people decided"
    assert "up to date" in next(line for line in out.splitlines() if "train/contrastive.vsepp" in line)


def test_evaluation_counts_what_fits_as_right(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    scenes = ["--dataset", "scenes", "--data", root, "--backbone", "vsepp", *of_evaluation()]
    evaluated = made(invoke("evaluate", *scenes))
    file = tmp_path / "decisions.parquet"
    judged(ranked_candidates(evaluated), DecisionFile(file))
    folder = made(invoke("evaluate", *scenes, "--decisions", file))
    found, metrics = (json.loads((folder / name).read_text()) for name in ("corrected.json", "metrics.json"))
    assert found["judged_percent"] == {"i2t": 100.0, "t2i": 100.0}, "the first ten of every ranking"
    for metric in ("i2t_r1", "i2t_r10", "t2i_r1", "t2i_r10"):  # where all is judged, that is the truth
        assert found["corrected"][metric] == metrics["oracle"][metric] == found["at_most"][metric]
    again = done(invoke("evaluate", *scenes, "--decisions", file))
    assert "up to date" in again
    assert "Right after all" in again


def test_judges_say_how_many_wrong_answers_are_right_after_all(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    scenes = ["--dataset", "scenes", "--data", root, "--backbone", "vsepp", *of_evaluation()]
    evaluated = made(invoke("evaluate", *scenes))
    file = tmp_path / "decisions.parquet"
    judged(ranked_candidates(evaluated), DecisionFile(file))
    judge = ("--judge", "captions:tfidf", "--judge", "graphs")
    folder = made(invoke("evaluate", *scenes, *judge))
    alone = json.loads((folder / "corrected.json").read_text())
    assert alone.keys() == {"by_judges"}
    assert alone["by_judges"]["right_after_all"]["i2t"].keys() == {"value"}, "no interval without people"
    for image_id, caption_id, probability in alone["by_judges"]["likely"]["i2t"]:
        assert probability > 0.5
        assert caption_id.partition("#")[0] != image_id
    candidates = ranked_candidates(folder)
    assert Queue(candidates).order == "calibration", "reviewed as the judges of the evaluation see them"
    assert candidates.probability is not None
    (image_id, caption_id, probability), *_ = alone["by_judges"]["likely"]["i2t"]
    (place,) = candidates.places([(image_id, caption_id)])
    assert candidates.probability[place] == pytest.approx(probability)
    assert len(candidates.probability) == len(candidates)

    folder = made(invoke("evaluate", *scenes, *judge, "--decisions", file))
    found, metrics = (json.loads((folder / name).read_text()) for name in ("corrected.json", "metrics.json"))
    recalls = found["by_judges"]["recalls"]
    for metric in ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10", "rsum"):
        # Where all is judged, people decide, and nothing is left to the judges.
        assert recalls[metric]["value"] == pytest.approx(metrics["oracle"][metric]["value"])
    assert recalls["i2t_r1"]["low"] == pytest.approx(recalls["i2t_r1"]["high"])
