"""The matrix of sources of negatives by objectives and weights: its places, numbers, controls and marks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from itrpipe.reporting.sections.combinations.section import view
from itrpipe.reporting.titles import title_by_choices

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.claims import Difference
from itrpipe.methods.contrastive.declaration import Contrastive

NEIGHBOURS = "neighbours, mined every 2 epochs"


def series(
    rsums: list[float], control: bool = False, differing: Any = None, shares: float = 0.25, named: str = "", **loss: Any
) -> Any:
    """Runs of one combination with three seeds, as a report has them."""
    settings = {"method": "contrastive", "loss": Contrastive(**loss).model_dump(mode="json")}
    history = [{"mean_text_match_share": shares, "mean_image_match_share": shares / 2}, {"loss": 1.0}]
    model = SimpleNamespace(
        artifact=SimpleNamespace(manifest=SimpleNamespace(settings=settings)),
        is_control=control,
        method="in-batch negatives (same compute)" if control else "",
        history=history,
        named=named,
    )
    runs = tuple(
        SimpleNamespace(
            members=(model,),
            seed=seed,
            manifest=SimpleNamespace(finished=str(seed)),
            metrics={"full": {"rsum": {"value": value}}, "oracle": {"rsum": {"value": value + 50}}},
            processor_seconds=60.0,
            backbone="VSE++",
            is_control=control,
            is_untrained=False,
        )
        for seed, value in enumerate(rsums)
    )
    return SimpleNamespace(first=runs[0], all=runs, differing=differing or {})


def difference(value: float, significant: bool) -> Difference:
    around = Interval(value, value - 1, value + 1)
    return Difference(value, around, around, 3, 0.95, significant)


def tables(found: list[Any], compared: list[Any]) -> Any:
    seeds = SimpleNamespace(found=SimpleNamespace(comparisons=compared))
    source: Any = SimpleNamespace(
        groups=[SimpleNamespace(series=found, seeds=seeds)], options=SimpleNamespace(interval_level=0.95)
    )
    made = view(source)
    assert made is not None
    ((_, by_backbone),) = made
    return {table.title: table for table in by_backbone["VSE++"]}


def test_every_number_of_a_combination_stands_in_its_place() -> None:
    control, plain = series([450.0, 452.0, 454.0], control=True), series([440.0, 441.0, 442.0])
    mined = series([460.0, 462.0, 464.0], negatives=["mined"], weigh="guard")
    again = series([430.0, 431.0, 432.0], batches="neighbours", refresh_every=2)
    larger = series([441.0, 442.0, 443.0], differing={"batch_size": 512})
    worse, better = difference(-9.5, True), difference(8.0, True)
    weaker = series([400.0, 402.0, 404.0], control=True)
    comparisons = [
        SimpleNamespace(series=mined, reference=each, own={"rsum": better}, is_controlled=True)
        for each in (weaker, control)
    ]
    comparisons += [SimpleNamespace(series=again, reference=control, own={"rsum": worse}, is_controlled=True)]
    # Of single differences -20, -21 and -22: their deviation is 1, and 4.303 / sqrt(3) of it is 2.5.
    found = tables([control, plain, larger, mined, again], comparisons)
    rsum = found["RSum"]
    assert rsum.columns == ["InfoNCE", "InfoNCE, guard"]
    rows = {(row.name, row.note): [(cell.text, cell.interval, cell.marked) for cell in row.cells] for row in rsum.rows}
    empty = ("–", "", False)
    assert rows == {
        ("in-batch negatives (same compute)", ""): [("452.0 ± 2.0", "", False), empty],
        ("in-batch negatives", ""): [("441.0 ± 1.0", "", False), empty],
        ("in-batch negatives", "batch_size 512"): [("442.0 ± 1.0", "", False), empty],
        ("mined", ""): [empty, ("462.0 ± 2.0", "+10.0, +10.0 to +10.0", True)],
        (NEIGHBOURS, ""): [("431.0 ± 1.0", "−21.0, −23.5 to −18.5", False), empty],
    }
    assert found["RSum, all correct matches"].rows[0].cells[0].text == "502.0 ± 2.0"
    names = list(dict.fromkeys(row.name for row in rsum.rows))
    assert names == ["in-batch negatives (same compute)", "mined", "in-batch negatives", NEIGHBOURS]
    assert found["Correct matches among the negatives"].rows[0].cells[0].text == "18.8 ± 0.0"
    assert found["Processor time"].rows[0].cells[0].text == "60.0 s"


def test_one_combination_is_no_matrix() -> None:
    groups = [SimpleNamespace(series=[series([1.0]), series([2.0])], seeds=None)]
    found: Any = SimpleNamespace(groups=groups, options=SimpleNamespace(interval_level=0.95))
    assert view(found) is None


@pytest.mark.parametrize(
    ("loss", "title"),
    [
        ({}, "InfoNCE"),
        ({"negatives": ["mined", "synthetic"], "weigh": "fne"}, "InfoNCE, mined+synthetic, fne"),
        (
            {"objective": "sigmoid", "batches": "neighbours", "refresh_every": 2},
            f"sigmoid loss, {NEIGHBOURS}",
        ),
        ({"refresh_every": 2}, "InfoNCE"),
    ],
)
def test_a_run_is_named_by_its_choices(loss: dict[str, Any], title: str) -> None:
    settings = {"method": "contrastive", "loss": Contrastive(**loss).model_dump(mode="json")}
    assert title_by_choices("contrastive", settings) == title
    assert title_by_choices("contrastive-batch", settings) == ""
    assert title_by_choices("triplet", {"method": "triplet", "loss": {"margin": 0.2}}) == ""
