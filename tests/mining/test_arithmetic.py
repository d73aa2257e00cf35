"""What a machine multiplies faster: measured once, remembered for this hardware, and made again where that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from itrpipe.mining import arithmetic
from itrpipe.mining.arithmetic import MARGIN, Seconds, best_seconds, gigaflops, product_seconds
from itrpipe.mining.products import faster_in_two_steps

CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that remembers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "itrpipe" / "arithmetic.json"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Seconds]:
    """What the next measurements find, the last of them first."""
    found = [Seconds(1.0, 2.0), Seconds(2.0, 1.0)]
    monkeypatch.setattr(arithmetic, "_time_products", lambda device: found.pop())
    return found


def test_a_machine_is_measured_once(cache: Path, measured: list[Seconds]) -> None:
    assert product_seconds() == product_seconds() == Seconds(2.0, 1.0)
    assert len(measured) == 1
    (key,) = json.loads(cache.read_text())
    assert torch.__version__ in key


def test_other_hardware_is_measured_by_itself(
    cache: Path, measured: list[Seconds], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = product_seconds()
    monkeypatch.setattr(arithmetic, "_processor", lambda: "another processor")
    assert product_seconds() == Seconds(1.0, 2.0) != first
    assert len(json.loads(cache.read_text())) == 2


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_damaged_cache_is_made_again(cache: Path, measured: list[Seconds], content: bytes) -> None:
    cache.parent.mkdir()
    cache.write_bytes(content)
    assert product_seconds() == Seconds(2.0, 1.0)
    assert product_seconds() == Seconds(2.0, 1.0)


def test_an_entry_of_another_form_is_made_again(cache: Path, measured: list[Seconds]) -> None:
    product_seconds()
    (key,) = json.loads(cache.read_text())
    for entry in ({"fp32": 1.0}, None, {"fp32": 1.0, "bf16": "fast"}, {"fp32": 1.0, "bf16": 0.0}):
        cache.write_text(json.dumps({key: entry}))
        measured.append(Seconds(3.0, 1.0))
        assert product_seconds() == Seconds(3.0, 1.0)


def test_where_nothing_can_be_kept_it_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = [Seconds(1.0, 2.0), Seconds(2.0, 1.0)]
    monkeypatch.setattr(arithmetic, "_time_products", lambda device: found.pop())
    assert (product_seconds(), product_seconds()) == (Seconds(2.0, 1.0), Seconds(1.0, 2.0))


def test_a_user_without_a_home_measures_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(arithmetic.Path, "home", nowhere)
    found = [Seconds(1.0, 2.0), Seconds(2.0, 1.0)]
    monkeypatch.setattr(arithmetic, "_time_products", lambda device: found.pop())
    assert (product_seconds(), product_seconds()) == (Seconds(2.0, 1.0), Seconds(1.0, 2.0))


def test_bfloat16_is_chosen_where_it_gains_more_than_a_little() -> None:
    assert Seconds(MARGIN + 0.01, 1.0).faster == "bf16"
    assert Seconds(MARGIN - 0.01, 1.0).faster == "fp32"


def test_both_are_timed_in_turn_and_the_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []
    monkeypatch.setattr(arithmetic.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(arithmetic.time, "perf_counter", lambda: now[0])

    def takes(name: str, *seconds: float):
        left = list(seconds)

        def work() -> None:
            calls.append(name)
            now[0] += left.pop(0)

        return work

    found = best_seconds(takes("fp32", 9, 0.3, 0.25), takes("bf16", 9, 0.1, 0.2), CPU)
    assert calls == ["fp32", "bf16"] * 3  # the first of each only warms up
    assert (found.fp32, found.bf16) == (pytest.approx(0.25), pytest.approx(0.1))


def test_what_is_measured_is_a_product(cache: Path) -> None:
    found = product_seconds()
    assert 0.01 < gigaflops(found.fp32) < 1e6
    assert torch.get_num_threads() > 0


@pytest.mark.parametrize(("found", "precision"), [(Seconds(2.0, 1.0), "bf16+fp32"), (Seconds(1.0, 2.0), "fp32+fp32")])
def test_mining_looks_in_the_faster_one(found: Seconds, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itrpipe.mining.products.product_seconds", lambda device: found)
    assert faster_in_two_steps("cpu") == precision
