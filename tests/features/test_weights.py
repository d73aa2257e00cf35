"""Weights in files are whole, of the network, and never code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features import weights


class Intruder:
    """An object whose pickle writes a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("intruder"), "ran")


def test_damaged_files_are_one_line_and_nothing_in_them_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"a": torch.arange(1000.0)}, "cut.safetensors")
    torch.save({"a": torch.arange(100.0)}, "cut.pt")
    torch.save({"a": torch.arange(100.0)}, "old.pth", _use_new_zipfile_serialization=False)
    assert weights.read_state(Path("old.pth")).keys() == {"a"}
    for path in map(Path, ("cut.safetensors", "cut.pt", "old.pth")):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    Path("plain.bin").write_bytes(pickle.dumps({"a": Intruder()}, protocol=2))
    for name, content in {"objects": {"a": Intruder()}, "number": {"a": 3}, "list": ["a"]}.items():
        torch.save(content, f"{name}.pt")
    for path in sorted(Path().iterdir()):
        with pytest.raises(DataError, match=f"^{path.name} [^\n]*; get it again, or name a plain state dict$"):
            weights.read_state(path)
    assert not Path("intruder").exists()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize("wrong", [None, torch.zeros(3, 2), torch.full((3,), torch.nan), torch.zeros(3).long()])
def test_weights_of_another_network_are_one_line(wrong: torch.Tensor | None) -> None:
    state = {name: each for name, each in {**network().state_dict(), "1.bias": wrong}.items() if each is not None}
    with pytest.raises(DataError, match=r"w\.pt .*\b1\.bias|w\.pt: '1\.bias'") as caught:
        weights.fill(network(), Path("w.pt"), state, "get it again")
    assert "\n" not in str(caught.value)


def test_weights_may_be_halves_and_further_tensors_are_noted(tmp_path: Path) -> None:
    halves = {name: each.half() for name, each in network().state_dict().items() if each.is_floating_point()}
    torch.save({"model": halves | {"x.num_batches_tracked": torch.tensor(1)}, "epoch": 5}, tmp_path / "w.pt")
    state = weights.read_state(tmp_path / "w.pt")
    with torch.device("meta"):
        made = network()
    assert weights.fill(made, Path("w.pt"), state, "") == ()
    assert {(each.dtype, each.is_meta) for each in made.parameters()} == {(torch.float32, False)}
    notes = weights.fill(made, Path("w.pt"), state | {"x": torch.ones(1)}, "")
    assert notes == ("w.pt: 'x', one of 1 tensors, is none of this network",)


def test_files_of_weights_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty/no.txt", "two/a.bin", "two/b.pth", "weights.pkl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    for name, error, told in (
        ("nothing.bin", MissingInputError, "does not exist"),
        ("/nowhere/folder", MissingInputError, "does not exist"),
        ("empty", MissingInputError, "holds 0 files"),
        ("two", DataError, "holds 2 files"),
        ("weights.pkl", DataError, "holds 0 files of weights; name one that ends in .bin"),
    ):
        with pytest.raises(error, match=told):
            weights.local_weights(name)
