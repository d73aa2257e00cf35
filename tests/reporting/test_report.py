"""The report of small runs: its numbers are those of the artifacts, its page is safe, self-contained and honest."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from itrpipe import artifacts, pipeline
from itrpipe.artifacts import Location, Manifest
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, save_definition
from itrpipe.datasets.image_check import check_images
from itrpipe.datasets.prepared import write_prepared
from itrpipe.datasets.records import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.truth import TRUTH_FILE, write_truth
from itrpipe.errors import UsageError
from itrpipe.evaluation.bootstrap import paired_intervals
from itrpipe.evaluation.ranks import Ranks
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, EmbeddingWriter
from itrpipe.pipeline import Planner, pinned_step
from itrpipe.progress import Reporter
from itrpipe.reporting.examples import choose
from itrpipe.stages import evaluate, mine_negatives
from itrpipe.stages.base import Input, Job, Need

DATASET, WIDTH = "toy", 16
SIZES = {"train": 40, "val": 6, "test": 30}
HOSTILE = "<script>alert('caption')</script> & \"><img src=x onerror=alert(1)>"
MODEL = {"backbone": "vsepp", "seed": 0, "features": "toy"}
EVALUATE = {"split": "test", "protocols": ("full",), "bootstrap_samples": 100, "interval_level": 0.95}
NOISE = {"triplet": 1.6, "aoq": 0.7}
PREPARE = {"kind": "scenes", "train": 40, "val": 6, "test": 30, "seed": 0, "family_size": 1, "keep_probability": 0.0}


@dataclass
class Element:
    """A node of the parsed page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str, name: str = "") -> list[Element]:
        below = [found for each in self.children if isinstance(each, Element) for found in each.all(tag, name)]
        own = self.tag == tag and (not name or name in self.attributes.get("class", "").split())
        return [self, *below] if own else below

    def text(self, without: str = "span") -> str:
        parts = [
            each if isinstance(each, str) else each.text(without)
            for each in self.children
            if isinstance(each, str) or each.tag != without
        ]
        return " ".join("".join(parts).split())


class Page(HTMLParser):
    """Parses the page into elements."""

    VOID = ("meta", "img", "br", "link", "input", "use", "line", "hr")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(content)
        assert self._open == [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(element := Element(tag, {key: value or "" for key, value in attrs}))
        if tag not in self.VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def seal(
    root: Path, stage: str, label: str, settings: Mapping[str, Any], inputs: Mapping[str, Path], write: Callable
) -> Path:
    """Makes one artifact with the product's own machinery; `write` gets the job."""
    manifests = {name: artifacts.read_manifest(folder) for name, folder in inputs.items()}
    digest = artifacts.fingerprint(stage, 1, settings, {name: each.fingerprint for name, each in manifests.items()})
    location = Location(root, DATASET, stage, label, digest)
    given = {name: Input(inputs[name], manifests[name]) for name in inputs}
    execution = mine_negatives.Execution(device="cpu", block=64, checkpoint_seconds=60)
    write(
        Job(
            DATASET,
            label,
            SimpleNamespace(**settings),
            execution,
            given,
            None,
            artifacts.open_partial(location),
            Reporter(),
        )
    )
    read = {
        name: {"stage": each.stage, "name": inputs[name].name, "fingerprint": each.fingerprint}
        for name, each in manifests.items()
    }
    fields = {"stage": stage, "schema_version": 1, "dataset": DATASET, "conf": label, "label": label}
    fields |= {"fingerprint": digest, "settings": settings, "execution": {}, "inputs": read, "metrics": {}}
    fields |= {"timings": {"total": 1.25}, "command": f"itrpipe {stage} --as {label}", "messages": []}
    artifacts.finish(location, {**fields, "finished": "2026-03-01T12:00:00+00:00"})
    return location.folder


def image_id(split: str, row: int) -> str:
    return f"{split}-{row:03d}"


def write_dataset(job: Job) -> None:
    """Two captions per image; the second is also true of the next image of its split."""
    images, captions, truth = [], [], {}
    (job.folder / "images").mkdir()
    for split, size in SIZES.items():
        for row in range(size):
            name = image_id(split, row)
            images.append(ImageRecord(name, f"images/{name}.png", split))
            Image.new("RGB", (40 + row, 30), (row * 5 % 256, 80, len(split) * 30)).save(job.folder / images[-1].file)
            captions += [
                CaptionRecord(f"{name}#0", name, f"{HOSTILE} {row}"),
                CaptionRecord(f"{name}#1", name, f"a plain caption of {name}"),
            ]
            truth |= {f"{name}#0": [name], f"{name}#1": sorted({name, image_id(split, (row + 1) % size)})}
    records = Annotations(images, captions, job.folder)
    write_prepared(job.folder, records, check_images(records, 1).facts, [["a"] for _ in captions])
    write_truth(job.folder, truth)


def write_model(method: str) -> Callable[[Job], None]:
    def write(job: Job) -> None:
        random = np.random.default_rng(sum(map(ord, method)))
        for split, size in SIZES.items():
            names = [image_id(split, row) for row in range(size)]
            caption_image = np.arange(2 * size) // 2
            images = random.normal(size=(size, WIDTH)).astype(np.float32)
            texts = images[caption_image] + NOISE[method] * random.normal(size=(2 * size, WIDTH)).astype(np.float32)
            captions = [f"{name}#{k}" for name in names for k in range(2)]
            writer = EmbeddingWriter(
                job.folder / EMBEDDINGS, split, names, captions, caption_image, WIDTH, INNER_PRODUCT
            )
            writer.write("images", 0, images / np.linalg.norm(images, axis=1, keepdims=True))
            writer.write("texts", 0, texts / np.linalg.norm(texts, axis=1, keepdims=True))
            writer.close()
        history = [{"epoch": k + 1, "loss": 1.0 / (k + 1), "val_rsum": 100.0 + k, "best": True} for k in range(3)]
        pq.write_table(pa.Table.from_pylist(history), job.folder / "history.parquet")

    return write


def build(root: Path, prepare: Mapping[str, Any] = PREPARE) -> dict[str, Path]:
    """A dataset, round one, its mined lists, AOQ and both evaluations; folders by name."""
    save_definition(root, DATASET, DatasetDefinition(prepare=StageDefinition(conf="toy", source=str(root / "gone"))))
    made = {"prepare": seal(root, "prepare", "toy", prepare, {}, write_dataset)}
    mining = {**MODEL, "method": "triplet", "num_texts": 12, "num_images": 11, "precision": "fp32"}
    for method in ("triplet", "aoq"):
        label = f"{method}.vsepp"
        read = {"prepare": made["prepare"]} | ({"mine_negatives": made["mining"]} if method == "aoq" else {})
        made[method] = seal(root, "train", label, {**MODEL, "method": method}, read, write_model(method))
        if method == "triplet":
            read = {"train": made["triplet"]}
            made["mining"] = seal(root, "mine_negatives", f"exact.{label}", mining, read, mine_negatives.run)
        read = {"prepare": made["prepare"], "train": made[method]}
        settings = {**MODEL, **EVALUATE, "method": method, "ranking_depth": 20}
        made[label] = seal(root, "evaluate", label, settings, read, evaluate.run)
    return made


def report(root: Path, made: Mapping[str, Path], runs: tuple[str, ...] = ("aoq.vsepp", "triplet.vsepp"), **given: Any):
    """Plans and runs the report as the command does; its folder, page and manifest."""
    inputs = {name: pinned_step(root, artifacts.read_manifest(made[name])) for name in runs}
    planner = Planner(root, DATASET)
    step = planner.plan(Need("report", "page", {"bootstrap_samples": 200, "examples": 4, **given}), inputs=inputs)
    (folder,) = pipeline.run([step], Reporter())
    return folder, Page((folder / "index.html").read_text()).root, artifacts.read_manifest(folder)


@dataclass(frozen=True)
class Toy:
    root: Path
    made: dict[str, Path]
    folder: Path
    page: Element
    manifest: Manifest

    def copy(self, root: Path) -> dict[str, Path]:
        """The same artifacts, without the report, to be damaged."""
        shutil.copytree(self.root, root)
        shutil.rmtree(root / DATASET / "report")
        return {name: root / folder.relative_to(self.root) for name, folder in self.made.items()}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    root = tmp_path_factory.mktemp("toy") / "data"
    made = build(root)
    return Toy(root, made, *report(root, made))


def rows_of(figure: Element) -> dict[str, list[str]]:
    (body,) = figure.all("tbody")
    return {row.all("th")[0].text(): [cell.text() for cell in row.all("td")] for row in body.all("tr")}


def read_ranks(folder: Path, column: str) -> Ranks:
    rows = pq.read_table(folder / "rankings.parquet", columns=["direction", column]).to_pylist()
    return Ranks(*(np.array([row[column] for row in rows if row["direction"] == side]) for side in ("i2t", "t2i")))


METRICS = [f"{side}_{name}" for side in ("i2t", "t2i") for name in ("r1", "r5", "r10", "median_rank")] + ["rsum"]


@pytest.mark.parametrize(("place", "protocol"), [(0, "full"), (1, "oracle")])
def test_the_results_are_those_of_the_metrics_files(toy: Toy, place: int, protocol: str) -> None:
    shown = rows_of(toy.page.all("figure", "best-marked")[place])
    for name, run in (("VSE++, round one", "triplet.vsepp"), ("VSE++, AOQ", "aoq.vsepp")):
        values = json.loads((toy.made[run] / "metrics.json").read_text())[protocol]
        expected = [f"{values[each]['value']:.{0 if each.endswith('rank') else 1}f}" for each in METRICS]
        assert shown[name] == expected
    assert "VSE++, AOQ" in (toy.folder / "summary.txt").read_text()


def test_the_best_of_each_column_is_marked(toy: Toy) -> None:
    metrics = [
        json.loads((toy.made[run] / "metrics.json").read_text())["full"] for run in ("triplet.vsepp", "aoq.vsepp")
    ]
    rows = toy.page.all("figure", "best-marked")[0].all("tbody")[0].all("tr")
    for column, metric in enumerate(METRICS):
        values = [each[metric]["value"] for each in metrics]
        best = min(values) if metric.endswith("rank") else max(values)
        marks = ["marked" in row.all("td")[column].attributes.get("class", "") for row in rows]
        assert marks == [value == best for value in values]


@pytest.mark.parametrize(("place", "key", "column"), [(0, "full", "rank"), (1, "oracle", "oracle_rank")])
def test_differences_are_paired_intervals_of_the_rankings(toy: Toy, place: int, key: str, column: str) -> None:
    before, after = (read_ranks(toy.made[run], column) for run in ("triplet.vsepp", "aoq.vsepp"))
    expected = paired_intervals(before, after, np.arange(60) // 2, 200, 0.95)
    (written,) = json.loads((toy.folder / "results.json").read_text())["differences"]
    assert (written["run"], written["baseline"]) == ("aoq.vsepp", "triplet.vsepp")
    for name, value in written[key].items():
        assert (value["value"], value["low"], value["high"]) == pytest.approx(
            (expected[name].value, expected[name].low, expected[name].high)
        )
        assert value["excludes_zero"] == (value["low"] > 0 or value["high"] < 0)
    (shown,) = rows_of(toy.page.all("figure", "significant-marked")[place]).values()
    assert shown[-1] == f"+{expected['rsum'].value:.1f}"
    assert "a significant gain on this test set" in (toy.folder / "summary.txt").read_text().replace("\n", " ")


def test_no_difference_between_equal_runs_is_called_significant(toy: Toy, tmp_path: Path) -> None:
    made = toy.copy(tmp_path / "data")
    for name in ("rankings.parquet", "metrics.json"):
        shutil.copy(made["triplet.vsepp"] / name, made["aoq.vsepp"] / name)
    manifest = json.loads((made["aoq.vsepp"] / "manifest.json").read_text())
    manifest["outputs"] = json.loads((made["triplet.vsepp"] / "manifest.json").read_text())["outputs"]
    (made["aoq.vsepp"] / "manifest.json").write_text(json.dumps(manifest))
    folder, page, _ = report(tmp_path / "data", made)
    assert "does not tell the two rounds apart" in page.all("p", "finding")[0].text()
    assert not page.all("span", "verdict")
    assert "*" not in (folder / "summary.txt").read_text().partition("* the interval")[0]


def test_the_page_asks_for_nothing_from_outside(toy: Toy) -> None:
    content = (toy.folder / "index.html").read_text()
    assert not any(toy.page.all(tag) for tag in ("script", "link", "iframe", "object", "base"))
    assert "@import" not in content
    assert "http:" not in content
    assert "https:" not in content
    assert content.count("url(") == content.count("url(#")

    def check(element: Element) -> None:
        for key, value in element.attributes.items():
            assert not key.startswith("on")
            if key in ("src", "href", "xlink:href", "srcset"):
                assert value.startswith(("data:image/jpeg;base64,", "#"))
        for child in element.children:
            if isinstance(child, Element):
                check(child)

    check(toy.page)


def test_anchors_are_unique_and_lead_somewhere(toy: Toy) -> None:
    content = (toy.folder / "index.html").read_text()
    identifiers = [piece.partition('"')[0] for piece in content.split(' id="')[1:]]
    assert len(set(identifiers)) == len(identifiers)
    wanted = [each.attributes["href"][1:] for tag in ("a", "use") for each in toy.page.all(tag)]
    wanted += [piece.partition(")")[0] for piece in content.split("url(#")[1:]]
    assert len(wanted) > 7
    assert set(wanted) <= set(identifiers)


def test_every_thumbnail_is_a_small_picture(toy: Toy) -> None:
    images = toy.page.all("img")
    assert len(images) > 20
    for each in images:
        picture = Image.open(io.BytesIO(base64.b64decode(each.attributes["src"].partition(",")[2], validate=True)))
        picture.load()
        assert picture.size == (int(each.attributes["width"]), int(each.attributes["height"]))
        assert max(picture.size) <= 176


def test_hostile_captions_are_shown_as_text(toy: Toy) -> None:
    content = (toy.folder / "index.html").read_text()
    assert "&lt;script&gt;alert(" in content
    assert "<script" not in content
    assert HOSTILE in toy.page.text(without="svg")


def test_false_negatives_are_counted_and_marked(toy: Toy) -> None:
    truth = dict(zip(*pq.read_table(toy.made["prepare"] / TRUTH_FILE).to_pydict().values(), strict=True))
    lists = {name: pq.read_table(toy.made["mining"] / f"{name}.parquet").to_pydict() for name in mined_lists()}
    captions, images = lists["images_for_texts"]["anchor_id"], lists["texts_for_images"]["anchor_id"]
    expected = {}
    for name, ids in (("texts_for_images", captions), ("images_for_texts", images)):
        hits = [
            [anchor in truth[ids[row]] if name == "texts_for_images" else ids[row] in truth[anchor] for row in rows]
            for anchor, rows in zip(lists[name]["anchor_id"], lists[name]["candidate_rows"], strict=True)
        ]
        expected[name] = {f"top_{k}": 100 * float(np.mean([row[:k] for row in hits])) for k in (1, 10)}
    written = json.loads((toy.folder / "results.json").read_text())["false_negatives"]
    assert list(written) == [toy.made["mining"].name]
    for name, shares in expected.items():
        assert written[toy.made["mining"].name][name] == pytest.approx(shares)
    assert expected["images_for_texts"]["top_10"] > 0
    assert [row.all("td")[1].text() for row in toy.page.all("table", "shares")[0].all("tbody")[0].all("tr")] == [
        f"{expected[name]['top_10']:.1f} %" for name in mined_lists()
    ]
    assert any("also true" in each.text("") for each in toy.page.all("li", "true"))


def mined_lists() -> tuple[str, str]:
    return ("texts_for_images", "images_for_texts")


def test_right_answers_of_the_examples_belong_to_their_queries(toy: Toy) -> None:
    section = next(each for each in toy.page.all("section") if each.attributes["id"] == "retrieval")
    beside = section.all("article", "beside")
    assert len(beside) == 4
    for article in beside:
        name = article.all("img")[0].attributes["alt"]
        row = int(name.rpartition("-")[2])
        for each in article.all("li"):
            own = each.all("span", "text")[0].text() in (f"{HOSTILE} {row}", f"a plain caption of {name}")
            assert own == ("own" in each.attributes["class"].split()) == ("✓" in each.text(""))


def test_a_removed_artifact_is_named_and_nothing_is_made_up(toy: Toy, tmp_path: Path) -> None:
    made = toy.copy(tmp_path / "data")
    shutil.rmtree(made["mining"])
    folder, page, _ = report(tmp_path / "data", made)
    missing = " ".join(each.text("") for each in page.all("p", "missing"))
    assert f"mine_negatives/{made['mining'].name} was removed" in missing
    assert not page.all("table", "quantiles")
    written = json.loads((folder / "results.json").read_text())
    assert written["removed"] == [f"mine_negatives/{made['mining'].name}"]
    assert written["false_negatives"] == {}
    assert written["differences"] == json.loads((toy.folder / "results.json").read_text())["differences"]


def test_without_dataset_and_models_only_the_metrics_remain(toy: Toy, tmp_path: Path) -> None:
    made = toy.copy(tmp_path / "data")
    for name in ("prepare", "aoq", "triplet"):
        shutil.rmtree(made[name])
    folder, page, _ = report(tmp_path / "data", made)
    assert rows_of(page.all("figure", "best-marked")[0]) == rows_of(toy.page.all("figure", "best-marked")[0])
    assert "the dataset was removed" in page.all("p", "finding")[0].text()
    assert not page.all("img")
    assert json.loads((folder / "results.json").read_text())["differences"] == []


def test_missing_photographs_become_placeholders_and_a_warning(toy: Toy, tmp_path: Path) -> None:
    made = toy.copy(tmp_path / "data")
    for file in (made["prepare"] / "images").iterdir():
        file.write_bytes(b"")
    manifest = json.loads((made["prepare"] / "manifest.json").read_text())
    manifest["outputs"] = {name: each for name, each in manifest["outputs"].items() if not name.startswith("images/")}
    (made["prepare"] / "manifest.json").write_text(json.dumps(manifest))
    _, page, done = report(tmp_path / "data", made)
    assert not page.all("img")
    assert "test-0" in page.all("span", "placeholder")[-1].text("")
    assert len(done.messages) == 1
    assert "photographs cannot be read and are shown as placeholders" in done.messages[0]


def test_a_source_that_is_gone_becomes_a_warning(tmp_path: Path) -> None:
    files = {"kind": "files", "format": "", "restval": "train", "bad_images": "refuse", "split_seed": 0}
    made = build(tmp_path, {**files, "val_fraction": 0.1, "test_fraction": 0.1})
    _, page, done = report(tmp_path, made)
    assert page.all("span", "placeholder")
    assert len(done.messages) == 1
    assert "the page shows no photographs" in done.messages[0]
    assert str(tmp_path / "gone") in done.messages[0]


def test_equal_artifacts_give_equal_bytes(toy: Toy, tmp_path: Path) -> None:
    folder, _, _ = report(tmp_path / "data", toy.copy(tmp_path / "data"), ("triplet.vsepp", "aoq.vsepp"))
    for name in ("index.html", "summary.txt", "results.json"):
        assert (folder / name).read_bytes() == (toy.folder / name).read_bytes()


def test_published_scores_stand_below_the_measured_ones(toy: Toy, tmp_path: Path) -> None:
    published = {"aoq.vsepp": {"rsum": 486.3, "where": "AOQ Table 2"}, "ssamt.vsrn": {"rsum": 500.0}}
    _, page, done = report(tmp_path / "data", toy.copy(tmp_path / "data"), published=published, title="A <b>title</b>")
    (row,) = page.all("tr", "published")
    assert [cell.text() for cell in row.all("td")] == ["–"] * 8 + ["486.3"]
    assert row.all("span", "label")[0].text("") == "AOQ Table 2"
    assert "ssamt.vsrn" in done.messages[0]
    assert page.all("h1")[0].text() == "A <b>title</b>"


@pytest.mark.parametrize("scores", [{"r@1": 3.0}, {"rsum": "high"}, {"where": 2.0}])
def test_unknown_published_scores_are_refused(tmp_path: Path, scores: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="published"):
        Planner(tmp_path, DATASET).plan(Need("report", "page", {"published": {"aoq.vsepp": scores}}), inputs={})


def test_one_run_alone_is_compared_with_nothing(toy: Toy, tmp_path: Path) -> None:
    folder, page, _ = report(tmp_path / "data", toy.copy(tmp_path / "data"), ("aoq.vsepp",))
    assert "No difference is measured" in page.all("p", "finding")[0].text()
    assert not page.all("td", "marked")
    assert json.loads((folder / "results.json").read_text())["differences"] == []


def test_the_summary_fits_a_terminal(toy: Toy) -> None:
    lines = (toy.folder / "summary.txt").read_text().splitlines()
    assert max(map(len, lines)) <= 100
    for run, name in (("triplet.vsepp", "VSE++, round one"), ("aoq.vsepp", "VSE++, AOQ")):
        metrics = json.loads((toy.made[run] / "metrics.json").read_text())
        shown = [each for each in lines if each.startswith(f"{name}  ")]
        for protocol, line in zip(("full", "oracle"), shown, strict=True):
            rsum = metrics[protocol]["rsum"]
            assert line.endswith(f"{rsum['value']:.1f}   {rsum['low']:.1f} to {rsum['high']:.1f}")


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 12), st.integers(0, 5))
def test_examples_are_half_right_where_possible(right: list[bool], count: int, seed: int) -> None:
    flags = np.array(right, dtype=bool)
    chosen = choose(flags, count, np.random.default_rng(seed))
    assert len(set(chosen)) == len(chosen) == min(count, len(flags))
    shown = [bool(flags[row]) for row in chosen]
    assert shown == sorted(shown, reverse=True)
    assert sum(shown) >= min(int(flags.sum()), (count + 1) // 2)
    assert len(shown) - sum(shown) >= min(int((~flags).sum()), count // 2)
