"""Settings that contradict each other, options that nothing reads, and data that are too few: refused, not ignored."""

from __future__ import annotations

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
from itrpipe.methods.declaration import MethodSettings, Mined, method_module, methods
from itrpipe.methods.fne.declaration import Fne
from itrpipe.methods.itm.declaration import Itm
from itrpipe.methods.ssamt.declaration import Ssamt
from itrpipe.methods.tags.declaration import Tags
from itrpipe.testing import ToyPairs
from tests.methods.toys import KnownPairs, Lookup

ROOT = Path(__file__).resolve().parents[2]
UNREAD = [(name, option) for name, kind in methods().items() for option in kind.unread]
CONTRADICTIONS: list[tuple[type[MethodSettings], dict[str, Any], str]] = [
    (Aoq, {"coupled": True, "false_negatives": "weigh"}, "coupled leaves no rank of images"),
    (Aoq, {"coupled": True, "top_images": 301}, "top_images <= top_texts"),
    (Aoq, {"online_term": False}, "online_term = False is an option that is not read"),
    (Aoq, {"variant": "offline-triplet", "quintuplet_pairs": "online"}, "quintuplet_pairs = online is an option that"),
    (Aoq, {"variant": "quintuplet", "weight_by": "positive"}, "weight_by = positive is an option that"),
    (Fne, {"momentum_twin": False}, "memory_size = 8192 needs momentum_twin = true"),
    (Itm, {"sampled_negatives": 4, "hard_negatives": 6}, "hard_negatives = 6 are to be found among"),
    (Tags, {"writer": "pretrain"}, "a static generator is the model of a configuration of train"),
    (Contrastive, {"weigh": "hardest", "objective": "hardest"}, "takes the hardest candidate already"),
    (Contrastive, {"negatives": ["mined"], "mined_texts": 0, "mined_images": 0}, "draw nothing"),
    (Contrastive, {"negatives": ["mined"], "skip_texts": 300}, "are fewer than mined_texts"),
    (Contrastive, {"weigh": "positive-aware", "relative_margin": None}, "give one"),
    (Contrastive, {"negatives": ["minde"]}, "Input should be 'batch', 'mined'"),
    (Contrastive, {"negatives": "mined"}, "valid tuple"),
    (Contrastive, {"temperature": 0.0}, "above 0"),
    (Contrastive, {"temperature": "warm"}, "give a number"),
    (Ssamt, {"phase": "inter", "margin_intra": 0.3}, "margin_intra = 0.3 is an option that is not read"),
    (Ssamt, {"phase": "inter", "sum_epochs": 2}, "sum_epochs = 2 is an option"),
    (Ssamt, {"phase": "intra", "margin_phrase": 0.3}, "margin_phrase = 0.3 is an option"),
    (Ssamt, {"phase": "intra", "weight_local": 0.3}, "weight_local = 0.3 is an option"),
    (Ssamt, {"phase": "intra", "negatives": "softmax"}, "negatives = softmax is an option"),
]
TOO_LITTLE: list[tuple[MethodSettings, str]] = [
    (Aoq(top_texts=5, top_images=3, false_negatives="weigh"), "--guard fne"),
    (Aoq(top_texts=5, top_images=3, false_negatives="drop"), "--guard fne"),
    (Contrastive(weigh="guard", top_texts=5, top_images=3), "--guard fne"),
    (Contrastive(weigh="truth"), "needs a dataset that knows all correct matches"),
]


@pytest.mark.parametrize(("name", "option"), UNREAD)
def test_an_option_that_nothing_reads_is_refused(name: str, option: str) -> None:
    kind = methods()[name]
    usual = kind.model_fields[option].default
    assert kind.model_validate({option: usual})
    other = not usual if isinstance(usual, bool) else usual + 1
    with pytest.raises(ValidationError, match=f"{option} = {other} is an option that is not read"):
        kind.model_validate({option: other})


@pytest.mark.parametrize(("kind", "given", "reason"), CONTRADICTIONS)
def test_what_does_not_go_together_is_refused(kind: type[MethodSettings], given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        kind.model_validate(given)
    if kind is Ssamt:  # the other phase reads it
        kind.model_validate(given | {"phase": "intra" if given["phase"] == "inter" else "inter"})


@pytest.mark.parametrize(("chosen", "reason"), TOO_LITTLE)
def test_data_that_are_too_few_or_know_too_little_are_refused(chosen: MethodSettings, reason: str) -> None:
    data = ToyPairs(images=12)
    lists = {name: each for name, each in data.lists().items() if PROBABILITY_OF not in name}
    name = next(name for name, kind in methods().items() if kind is type(chosen))
    with pytest.raises(UsageError, match=reason):
        method_module(name).build(chosen, data, lists)


@pytest.mark.parametrize("chosen", [Aoq(top_texts=5, top_images=3), Contrastive(negatives=("mined",), top_texts=5)])
def test_lists_that_filters_emptied_are_refused(chosen: MethodSettings) -> None:
    rows = KnownPairs(12)
    lists = {name: np.full_like(each, -1) for name, each in rows.lists().items()}
    with pytest.raises(UsageError, match="candidate left"):
        method_module(type(chosen).__name__.lower()).build(chosen, rows, lists)


def test_a_temperature_of_its_own_needs_a_pretrained_model_whose_scale_is_not_cut() -> None:
    rows = KnownPairs()
    method, model = method_module("contrastive").build(Contrastive(temperature="own"), rows, {}), Lookup(rows)
    with pytest.raises(UsageError, match="that of a pretrained joint model"):
        method.attach(model)
    model.pretrained_scale = lambda: (120.0, 0.0)  # pyright: ignore
    with pytest.raises(UsageError, match="largest_scale=120 or more"):
        method.attach(model)
    model.pretrained_scale = lambda: (50.0, -3.0)  # pyright: ignore
    sigmoids = Contrastive(temperature="own", bias="own", objective="sigmoid")
    state = method_module("contrastive").build(sigmoids, rows, {}).attach(model)
    assert (state.log_scale.exp().item(), state.bias.item()) == pytest.approx((50.0, -3.0))


@pytest.mark.parametrize("chosen", [Aoq(sum_epochs=2), Fne(sum_epochs=2), Fne(warm_epochs=2)])
def test_so_few_epochs_that_no_negative_is_drawn_are_refused(chosen: MethodSettings) -> None:
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


@pytest.mark.parametrize("captions", [1, 4, 468, 471, 3000, 15_000])
def test_lists_that_are_proposed_are_short_enough(captions: int) -> None:
    images = max(1, captions // 2)
    shorter = Mined(300, 60, None, "vsrn", "").shorter(captions, images)
    assert bool(shorter) == (captions < 3_000)
    proposed = Mined(shorter.get("top_texts", 300), shorter.get("top_images", 60), None, "vsrn", "")
    assert proposed.shorter(captions, images) == {}
