"""Settings that contradict each other, options that nothing reads, and data that are too few: refused, not ignored."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from itrpipe.errors import UsageError
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.contrastive.declaration import Contrastive
from itrpipe.methods.declaration import FirstEpochs, MethodSettings, method_module, methods
from itrpipe.methods.fne.declaration import Fne
from itrpipe.testing import ToyPairs
from tests.methods.toys import KnownPairs, Lookup, built

ROOT = Path(__file__).resolve().parents[2]
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
TOO_LITTLE: list[tuple[MethodSettings, str]] = [
    (Contrastive(weigh="truth"), "needs a dataset that knows all correct matches"),
]


@pytest.mark.parametrize(("name", "given", "reason"), CASES["contradictions"])
def test_what_does_not_go_together_is_refused(name: str, given: dict[str, Any], reason: str) -> None:
    kind = methods()[name]
    with pytest.raises(ValidationError, match=reason):
        kind.model_validate(given)


@pytest.mark.parametrize(("name", "given", "unread"), CASES["unread"])
def test_options_of_other_variants_are_told(name: str, given: dict[str, Any], unread: list[str]) -> None:
    """A training that is given one on the command line is refused."""
    assert list(methods()[name].model_validate(given).unused_options()) == unread


@pytest.mark.parametrize(("chosen", "reason"), TOO_LITTLE)
def test_data_that_are_too_few_or_know_too_little_are_refused(chosen: MethodSettings, reason: str) -> None:
    data = ToyPairs(images=12)
    lists = {name: each for name, each in data.lists().items() if PROBABILITY_OF not in name}
    name = next(name for name, kind in methods().items() if kind is type(chosen))
    with pytest.raises(UsageError, match=reason):
        built(method_module(name).build, chosen, data, lists=lists)


@pytest.mark.parametrize("chosen", [Aoq(top_texts=5, top_images=3), Contrastive(negatives=("mined",), top_texts=5)])
def test_lists_that_filters_emptied_are_refused(chosen: MethodSettings) -> None:
    rows = KnownPairs(12)
    lists = {name: np.full_like(each, -1) for name, each in rows.lists().items()}
    with pytest.raises(UsageError, match="candidate left"):
        built(method_module(type(chosen).__name__.lower()).build, chosen, rows, lists=lists)


def test_a_temperature_of_its_own_needs_a_pretrained_model_whose_scale_is_not_cut() -> None:
    rows = KnownPairs()
    method, model = method_module("contrastive").build(Contrastive(temperature="own"), rows), Lookup(rows)
    with pytest.raises(UsageError, match="that of a pretrained joint model"):
        method.attach(model)
    model.pretrained_scale = (120.0, 0.0)  # pyright: ignore
    with pytest.raises(UsageError, match="largest_scale=120 or more"):
        method.attach(model)
    model.pretrained_scale = (50.0, -3.0)  # pyright: ignore
    sigmoids = Contrastive(temperature="own", bias="own", objective="sigmoid")
    state = method_module("contrastive").build(sigmoids, rows).attach(model)
    assert (state.log_scale.exp().item(), state.bias.item()) == pytest.approx((50.0, -3.0))


@pytest.mark.parametrize("chosen", [Aoq(sum_epochs=2), Fne(sum_epochs=2), Fne(warm_epochs=2)])
def test_so_few_epochs_that_no_negative_is_drawn_are_refused(chosen: FirstEpochs) -> None:
    with pytest.raises(ValueError, match="epochs = 2 all fall within"):
        chosen.check_epochs(2)
    chosen.check_epochs(3)


@pytest.mark.parametrize(("conf", "name"), [*zip(methods(), methods(), strict=True), ("synthetic-triplet", "triplet")])
def test_what_a_configuration_says_of_its_method_is_the_default(conf: str, name: str) -> None:
    table = tomllib.loads((ROOT / "stages" / "4_train.toml").read_text(encoding="utf-8"))["conf"].get(conf, {})
    chosen = dict(table.get("loss", {}))
    assert chosen or conf in ("zero-shot", "tags-dc")
    for other in ("memory_size", "synthetic_sentences"):  # a multiple of the batch size of FNE's code; none by default
        chosen.pop(other, None)
    assert methods()[name]().model_dump(mode="json").items() >= chosen.items()
