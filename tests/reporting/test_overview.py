"""The table of all results, and the sentence that says what came out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from itrpipe.reporting import overview
from itrpipe.reporting.controls import is_control_of
from itrpipe.reporting.plots import Look, bars
from itrpipe.reporting.verdicts import _strongest, _too_short, versus

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.metrics import random_recalls

CHANCE = random_recalls(30, 60)["rsum"]
SEEDS = tuple(f"{method}.vsepp{end}" for method in ("triplet", "aoq") for end in ("", ".s1", ".s2"))


def rsum_of(toy: Any, run: str) -> dict[str, float]:
    return json.loads((toy.made[run] / "metrics.json").read_text())["full"]["rsum"]


def cells_of(report: Any) -> dict[str, list[Any]]:
    (figure,) = report.page.all("figure", "overview-marked")
    return {row.all("th")[0].text(): row.all("td") for row in figure.all("tbody")[0].all("tr")}


def test_a_method_is_a_row_and_a_backbone_a_column(toy: Any, done: Any) -> None:
    shown = cells_of(done)
    assert list(shown) == ["first training", "AOQ"]
    before, after = rsum_of(toy, "triplet.vsepp"), rsum_of(toy, "aoq.vsepp")
    (first,), (second,) = shown.values()
    assert first.attributes["data-heading"] == "VSE++"
    assert first.text() == f"{before['value']:.1f}"
    assert first.all("span", "interval")[0].text() == f"{before['low']:.1f}–{before['high']:.1f}"
    assert second.text() == f"{after['value']:.1f}"
    difference = after["value"] - before["value"]
    assert second.all("span", "interval")[0].text() == f"+{difference:.1f} to the first training"
    assert not done.page.all("span", "verdict")  # one seed


def answer_of(report: Any) -> str:
    """What the page and the terminal say first; neither names a command."""
    (answer,) = report.page.all("p", "answer")
    summary = (report.folder / "summary.txt").read_text()
    assert " ".join(answer.text().split()) in " ".join(summary.split())
    assert "itrpipe " not in f"{answer.text()}{summary}"
    return answer.text()


def test_the_answer_stands_first_and_one_seed_allows_no_claim(toy: Any, done: Any) -> None:
    (written,) = done.results["differences"]
    rsum = written["full"]["rsum"]
    assert answer_of(done) == (
        f"VSE++, AOQ differs from first training by +{rsum['value']:.1f} points of RSum with one seed "
        f"(95 % interval over images +{rsum['low']:.1f} to +{rsum['high']:.1f}), which allows no claim: how much "
        "seeds differ is not known."
    )


def test_one_seed_is_compared_with_its_control_where_there_is_one(seeded: Any) -> None:
    found = answer_of(seeded.report(("triplet.vsepp", "triplet-long.vsepp", "aoq.vsepp")))
    assert found.startswith("VSE++, AOQ differs from baseline (same epochs) by +")


def test_a_method_with_seeds_and_controls_is_told_against_the_strongest(seeded: Any) -> None:
    report = seeded.report((*SEEDS, *(f"triplet-long.vsepp{end}" for end in ("", ".s1", ".s2"))))
    (seeds,) = report.results["seeds"]
    least = min(seeds["differences"], key=lambda each: each["full"]["rsum"]["value"])
    name, rsum = least["reference"].removeprefix("VSE++, "), least["full"]["rsum"]
    assert rsum["significant"]
    assert answer_of(report).startswith(
        f"VSE++, AOQ is better than {name}, the strongest of the 2 runs to compare it with, by {rsum['value']:.1f} "
        "points of RSum (95 % interval over 3 seeds "
    )
    assert report.page.all("span", "verdict")


def test_several_seeds_are_a_mean_and_both_intervals_decide(seeded: Any) -> None:
    report = seeded.report(SEEDS)
    (cell,) = cells_of(report)["AOQ"]
    values = [rsum_of(seeded, run)["value"] for run in SEEDS]
    assert cell.text() == f"{np.mean(values[3:]):.1f} ± {np.std(values[3:], ddof=1):.1f}"
    (seeds,) = report.results["seeds"]
    rsum = seeds["differences"][0]["full"]["rsum"]
    assert cell.all("span", "interval")[0].text() == f"+{rsum['value']:.1f} to the first training"
    assert bool(cell.all("span", "verdict")) == rsum["significant"]
    ends = [rsum[name][end] for name in ("over_seeds", "over_images") for end in ("low", "high")]
    said = "(95 % interval over 3 seeds {:+.1f} to {:+.1f}, over images {:+.1f} to {:+.1f})".format(*ends)
    found = answer_of(report)
    assert said.replace("-", "\N{MINUS SIGN}") in found.replace("--", "==")
    assert "a claim takes a baseline with as many epochs as well, and none was evaluated with these seeds." in found


@pytest.mark.parametrize(
    ("runs", "title"),
    [
        (SEEDS, "RSum ± one standard deviation, means over seeds"),
        (SEEDS[2:], "RSum with the 95 % interval over images, means over seeds"),
        (("triplet.vsepp", "aoq.vsepp"), "RSum with the 95 % interval over images"),
    ],
)
def test_the_first_drawing_has_intervals_of_one_kind(
    seeded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: tuple[str, ...], title: str
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(overview, "bars", lambda *given, **more: drawn.append(given) or bars(*given, **more))
    seeded.copy(tmp_path / "data").report(runs, drawn=True)
    ((_, told, _, intervals, _),) = drawn
    assert told == title
    found = [rsum_of(seeded, run) for run in runs if run.startswith("aoq")]
    mean = float(np.mean([each["value"] for each in found]))
    ends = [float(np.mean([each[end] for each in found])) for end in ("low", "high")]
    if runs == SEEDS:
        deviation = float(np.std([each["value"] for each in found], ddof=1))
        ends = [mean - deviation, mean + deviation]
    assert [intervals[0].value, intervals[0].low, intervals[0].high] == pytest.approx([mean, *ends])


@pytest.mark.parametrize("high", [314.5, 320])
def test_numbers_at_the_end_of_an_axis_are_not_cut(high: float) -> None:
    look = Look("#050501", ())
    labels = [f"dual encoder, fine-tuned CLIP ({name})" for name in ("tuned", "tuned-warm", "tuned-warm-mined")]
    drawing = bars("x", "t", labels, [Interval(250, 183.5, high)] * 3, [look] * 3, reference=None)
    numbers = re.findall(r'text-anchor: middle[^>]*x="([\d.]+)" y="[\d.]+">(\d+)</text>', drawing.svg)
    place, digits = max(((float(x), digits) for x, digits in numbers), key=lambda each: each[0])
    assert place + len(digits) * 9.5 * 0.64 / 2 < 360


@pytest.mark.parametrize(
    ("run", "missing"),
    [("aoq.vsepp", "no baseline is there"), ("triplet.vsepp", "no other method is compared with it")],
)
def test_without_anything_to_compare_with_the_answer_says_so(toy: Any, tmp_path: Path, run: str, missing: str) -> None:
    report = toy.copy(tmp_path / "data").report((run,))
    value = rsum_of(toy, run)["value"]
    assert answer_of(report).endswith(f" reaches an RSum of {value:.1f} of 600, and chance {CHANCE:.1f}; {missing}.")


def test_published_scores_have_rows_of_their_own(toy: Any, tmp_path: Path) -> None:
    published = [{"run": "aoq.vsepp", "rsum": 486.3, "where": "AOQ Table 2"}]
    shown = cells_of(toy.copy(tmp_path / "data").report(published=published))
    assert list(shown) == ["first training", "AOQ", "published"]
    (cell,) = shown["published"]
    assert (cell.text(), cell.all("span", "interval")[0].text()) == ("486.3", "AOQ Table 2")


def test_worse_than_the_control_is_said_as_well(seeded: Any, tmp_path: Path) -> None:
    copy = seeded.copy(tmp_path / "data")
    for end in ("", ".s1", ".s2"):
        swap(copy.made[f"triplet-long.vsepp{end}"], copy.made[f"aoq.vsepp{end}"])
    report = copy.report((*SEEDS, *(f"triplet-long.vsepp{end}" for end in ("", ".s1", ".s2"))))
    assert "VSE++, AOQ is worse than baseline (same epochs), the strongest of " in answer_of(report)


def test_a_control_with_one_seed_allows_no_claim(seeded: Any) -> None:
    found = answer_of(seeded.report((*SEEDS, "triplet-long.vsepp")))
    assert "a claim takes a baseline" in found or "allows no claim" in found
    assert " is better than " not in found


def test_worse_is_said_of_the_reference_that_is_significantly_better() -> None:
    def compared(value: float, significant: bool, name: str) -> Any:
        rsum = SimpleNamespace(value=value, significant=significant)
        return SimpleNamespace(own={"rsum": rsum}, reference=name)

    doubtful, clear = compared(-9.0, False, "a"), compared(-5.0, True, "b")
    assert _strongest([doubtful, clear]) is clear  # pyright: ignore
    assert _strongest([doubtful, compared(2.0, True, "c")]) is doubtful  # pyright: ignore


def test_a_training_that_changed_nothing_is_told_so() -> None:
    def side(name: str, untrained: bool) -> Any:
        member = SimpleNamespace(named=name)
        run = SimpleNamespace(is_untrained=untrained, is_plain=not untrained, backbone="CLIP", members=[member])
        return SimpleNamespace(name=f"CLIP ({name})", method=name, first=run)

    def compared(value: float) -> Any:
        images = SimpleNamespace(low=value, high=value)
        own = {"rsum": SimpleNamespace(value=value, images=images, level=0.95, significant=False)}
        return SimpleNamespace(
            series=side("tuned", False), reference=side("clip", True), own=own, seeds=[0], is_controlled=False
        )

    assert "has the same recalls as clip on these images: training changed none" in versus(compared(0.0))


@pytest.mark.parametrize(
    ("longer", "declared", "value", "said"),
    [(2, False, 9.0, True), (4, False, 9.0, False), (2, True, 9.0, False), (2, False, -1.0, False)],
)
def test_a_gain_over_runs_that_were_trained_for_less_than_both_rounds_is_told_so(
    longer: int, declared: bool, value: float, said: bool
) -> None:
    def side(name: str, epochs: float, *, is_control: bool = False) -> Any:
        model = SimpleNamespace(named=name, mining=name == "mined", epochs=epochs, epochs_of_both=epochs + 2)
        first = SimpleNamespace(members=[model], is_untrained=False, is_control=is_control, is_plain=not is_control)
        return SimpleNamespace(first=first)

    own = {"rsum": SimpleNamespace(value=value, significant=True)}
    references = side("first", 1), side("longer", longer, is_control=declared)
    compared: Any = [SimpleNamespace(own=own, series=side("mined", 2), reference=each) for each in references]
    assert ("the 4 epochs that both trainings take" in _too_short({"mined": compared})) == said


@pytest.mark.parametrize(("epochs", "controls"), [(2, False), (16, True), (20, True)])
def test_a_training_on_its_batches_alone_is_a_control_only_for_as_many_epochs(epochs: int, controls: bool) -> None:
    def run(method: str, epochs: int) -> Any:
        artifact = SimpleNamespace(manifest=SimpleNamespace(settings={"epochs": epochs}))
        plain = method == "contrastive-batch"
        members = [SimpleNamespace(artifact=artifact, method_name=method)]
        return SimpleNamespace(members=members, is_control=plain, is_plain=plain, is_untrained=False)

    assert is_control_of(run("contrastive-batch", epochs), run("contrastive", 16)) is controls


def swap(one: Path, other: Path) -> None:
    """Gives two evaluations each other's results."""
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (one, other)]
    for name in manifests[0]["outputs"]:
        contents = [(folder / name).read_bytes() for folder in (one, other)]
        (one / name).write_bytes(contents[1])
        (other / name).write_bytes(contents[0])
    for folder, own, theirs in ((one, *manifests), (other, *manifests[::-1])):
        (folder / "manifest.json").write_text(json.dumps({**own, "outputs": theirs["outputs"], "checksum": ""}))
