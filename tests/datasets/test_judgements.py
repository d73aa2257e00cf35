"""People's judgements of captions: both forms of the files, malformed ones, and paths that escape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from itrpipe.datasets.judgements import read_judgements
from itrpipe.errors import DataError, ItrpipeError, MissingInputError
from tests.datasets.judgements import write_judgements
from tests.datasets.sources import refusal


def test_published_files_hold_what_tables_do_and_own_captions_are_no_pairs(tmp_path: Path) -> None:
    found = read_judgements(str(write_judgements(tmp_path / "tables")))
    published = read_judgements(str(write_judgements(tmp_path / "published", published=True)))
    assert found.files == published.files == ["bus.jpg", "car.jpg", "dog.jpg", "puppy.jpg"]
    assert found.captions == published.captions
    assert len(found.captions) == 8, "captions of photographs that nobody was asked about are left out"
    for kind, answers in found.answers.items():
        assert all(map(np.array_equal, answers, published.answers[kind]))
        assert not np.any(found.owners[answers.captions] == answers.images)
    experts, crowd = found.answers["experts"], found.answers["crowd"]
    assert experts.values.tolist() == [[4, 3, 4], [1, 2, 1], [2, 1, 2], [1, 1, 1]]
    assert experts.fits.tolist() == [True, False, False, False]
    assert crowd.values.ravel().tolist() == [1, 0.3333, 0, 0]
    assert [found.captions[row] for row in crowd.captions[:2]] == ["a running dog", "the car is parked"]
    assert found.photographs() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "kind", "said"),
    [
        ("expert.tsv", "4\t3\t4", "4\t3", DataError, "expert.tsv: CSV parse error"),
        ("expert.tsv", "4\t3\t4", "4\t5\t4", DataError, "dog.jpg, puppy.jpg#0, 4.0, 5.0, 4.0"),
        ("crowd.tsv", "0.3333", "nan", DataError, "bus.jpg, car.jpg#1"),
        ("crowd.tsv", "0.3333", "most", DataError, "'most'"),
        ("crowd.tsv", "car.jpg#1", "car.jpg#7", DataError, "car.jpg#7"),
        ("crowd.tsv", "bus.jpg\tcar.jpg#1", "van.jpg\tcar.jpg#1", DataError, "van.jpg"),
        ("captions.tsv", "\tcaption\n", "\ttext\n", DataError, "captions.tsv: Column 'caption'"),
        ("crowd.tsv", "\t1\t3\t0", "\t0\t0\t3", DataError, "all pairs fit, or none does"),
    ],
)
def test_malformed_files_are_refused_in_a_line(
    tmp_path: Path, file: str, old: str, new: str, kind: type[ItrpipeError], said: str
) -> None:
    path = write_judgements(tmp_path / "own") / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    refusal(kind, said, read_judgements, str(path.parent))


def test_missing_files_and_photographs_are_told(tmp_path: Path) -> None:
    folder = write_judgements(tmp_path / "own", photographs="images")
    assert read_judgements(str(folder)).photographs()[0] == "images/bus.jpg"
    (folder / "images" / "car.jpg").unlink()
    refusal(MissingInputError, "1 of 4 images are not there", read_judgements(str(folder)).photographs)
    (folder / "crowd.tsv").unlink()
    refusal(MissingInputError, "crowd.tsv, CrowdFlowerAnnotations.txt", read_judgements, str(folder))


def test_photographs_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = write_judgements(tmp_path / "own", photographs="images")
    for name in ("captions.tsv", "crowd.tsv", "expert.tsv"):
        path = folder / name
        path.write_text(path.read_text().replace("bus.jpg", "../../bus.jpg"))
    refusal(DataError, "contains '..'", read_judgements(str(folder)).photographs)
