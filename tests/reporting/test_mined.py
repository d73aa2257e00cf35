"""Mined lists in the report: false negatives, lists of different length, and images that mining did without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.library import Library
from itrpipe.reporting.sections.mined.section import ShownList, false_negative_shares, mined_examples, read_lists

from itrpipe.datasets.truth import TRUTH_FILE
from itrpipe.errors import DataError
from itrpipe.storage import artifact as artifacts
from itrpipe.storage.disk import file_digest

LEFT_OUT = ("train-000", "train-007", "train-039")


class LastRowIsTrue:
    """A truth in which the last caption is true of every image, and nothing else is of anything."""

    def contains(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
        return np.broadcast_to(captions % 5 == 4, np.broadcast_shapes(captions.shape, images.shape))


def artifact(folder: Path) -> Artifact:
    manifest = artifacts.read_manifest(folder)
    return Artifact(manifest.stage, folder.name, manifest.fingerprint, folder, manifest)


@pytest.fixture(scope="module")
def sparse(build_toy: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A dataset with three training images that had no features."""
    return build_toy(tmp_path_factory.mktemp("sparse") / "data", left_out=LEFT_OUT)


def test_places_behind_the_end_of_a_list_do_not_count() -> None:
    """Taken as a row number, -1 would be the last caption."""
    candidates = np.array([[4, 1, -1, -1], [2, -1, -1, -1]])
    mined = ShownList(np.arange(2), candidates, np.zeros(candidates.shape, dtype=np.float16))
    shares = false_negative_shares(mined, "texts_for_images", LastRowIsTrue())  # type: ignore[arg-type]
    np.testing.assert_allclose(shares, [50.0, 100 / 3])


def test_rows_of_what_was_trained_on_become_rows_of_the_split(sparse: Any) -> None:
    gallery = Library(artifact(sparse.made["prepare"]), None).gallery("train")
    lists = read_lists(artifact(sparse.made["mining"]), gallery)
    ids = {"texts_for_images": gallery.split.image_ids, "images_for_texts": gallery.split.caption_ids}
    other = {"texts_for_images": "images_for_texts", "images_for_texts": "texts_for_images"}
    for name, found in lists.items():
        written = pq.read_table(sparse.made["mining"] / f"{name}.parquet").to_pydict()
        anchors = pq.read_table(sparse.made["mining"] / f"{other[name]}.parquet")["anchor_id"].to_pylist()
        assert ids[name][found.anchors].tolist() == written["anchor_id"]
        expected = [[anchors[row] for row in rows] for rows in written["candidate_rows"]]
        assert ids[other[name]][found.candidates].tolist() == expected
        assert not set(written["anchor_id"]) & {*LEFT_OUT, *(f"{each}#0" for each in LEFT_OUT)}
    assert len(lists["texts_for_images"].anchors) == len(gallery.split.image_ids) - len(LEFT_OUT)


def test_the_report_counts_false_negatives_although_images_were_left_out(sparse: Any) -> None:
    truth = dict(zip(*pq.read_table(sparse.made["prepare"] / TRUTH_FILE).to_pydict().values(), strict=True))
    lists = {
        name: pq.read_table(sparse.made["mining"] / f"{name}.parquet").to_pydict()
        for name in ("images_for_texts", "texts_for_images")
    }
    images = lists["texts_for_images"]["anchor_id"]
    rows = zip(*(lists["images_for_texts"][key] for key in ("anchor_id", "candidate_rows")), strict=True)
    hits = [[images[row] in truth[caption] for row in candidates[:10]] for caption, candidates in rows]
    done = sparse.report()
    shares = done.results["false_negatives"][sparse.made["mining"].name]
    assert shares["images_for_texts"]["top_10"] == pytest.approx(100 * np.mean(hits))
    assert np.any(hits)
    shown = [each.attributes["alt"] for each in done.page.all("img") if each.attributes["alt"].startswith("train")]
    assert shown
    assert not set(shown) & set(LEFT_OUT)


def test_examples_show_the_candidates_of_their_anchors(sparse: Any) -> None:
    gallery = Library(artifact(sparse.made["prepare"]), None).gallery("train")
    lists = {
        name: pq.read_table(sparse.made["mining"] / f"{name}.parquet").to_pydict()
        for name in ("images_for_texts", "texts_for_images")
    }
    images, captions = (lists[name]["anchor_id"] for name in ("texts_for_images", "images_for_texts"))
    text_of = dict(zip(gallery.split.caption_ids.tolist(), gallery.split.texts, strict=True))
    candidates = {
        name: dict(zip(each["anchor_id"], each["candidate_rows"], strict=True)) for name, each in lists.items()
    }
    found = mined_examples(artifact(sparse.made["mining"]), gallery, 40, 0)
    for each in found["texts_for_images"]:
        rows = candidates["texts_for_images"][each.picture.image_id][:5]
        assert [candidate.text for candidate in each.candidates] == [text_of[captions[row]] for row in rows]
        assert each.text == text_of[f"{each.picture.image_id}#0"]
    for each in found["images_for_texts"]:
        (caption,) = [key for key, text in text_of.items() if text == each.text]
        rows = candidates["images_for_texts"][caption][:5]
        shown = [candidate.picture.image_id for candidate in each.candidates if candidate.picture]
        assert shown == [images[row] for row in rows]
        assert each.picture.image_id == caption.partition("#")[0]
    assert len(found["texts_for_images"]) == 37


def test_lists_of_images_that_the_split_does_not_have_are_refused(sparse: Any) -> None:
    gallery = Library(artifact(sparse.made["prepare"]), None).gallery("test")
    with pytest.raises(DataError, match=r"texts_for_images holds 37 anchors that the test split does not have"):
        read_lists(artifact(sparse.made["mining"]), gallery)


def test_lists_that_a_margin_cut_or_emptied_are_shown_without_figures(toy: Any, tmp_path: Path) -> None:
    copy = toy.copy(tmp_path / "data")
    path = copy.made["mining"] / "statistics.json"
    manifest = copy.made["mining"] / "manifest.json"
    statistics = json.loads(path.read_text())
    statistics |= {"texts_for_images": None, "dropped": {"texts_for_images": {"absolute_margin": 9}}}
    statistics["dropped"]["images_for_texts"] = {"duplicates": 1}
    path.write_text(json.dumps(statistics))
    recorded = json.loads(manifest.read_text())
    recorded["outputs"]["statistics.json"] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    manifest.write_text(json.dumps({**recorded, "checksum": ""}))
    page = copy.report().page
    _, own, texts, images = page.all("table", "quantiles")[0].all("tbody")[0].all("tr")
    assert [cell.text() for cell in texts.all("td")] == ["–"] * 5
    assert "–" not in own.text() + images.text()
    _, texts, images = page.all("table", "shares")[0].all("tbody")[0].all("tr")
    assert texts.all("td")[0].text() == "–"
    beaten = statistics["hardest_image_beats_own_image_percent"]
    assert images.all("td")[0].text() == f"{beaten:.1f} %"
    assert "–: a margin cut those that do" in page.all("table", "shares")[0].all("caption")[0].text()
