"""Options that a method shares with others and does not read are refused, not ignored."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from itrpipe.methods.declaration import methods
from itrpipe.methods.ssamt.declaration import Ssamt

UNREAD = [(name, option) for name, kind in methods().items() for option in kind.unread]


def test_some_methods_have_such_options() -> None:
    assert {name for name, _ in UNREAD} >= {"itm", "pretrain", "tags", "tags-dc", "ascl", "ssamt"}


@pytest.mark.parametrize(("name", "option"), UNREAD)
def test_an_option_that_nothing_reads_is_refused(name: str, option: str) -> None:
    kind = methods()[name]
    usual = kind.model_fields[option].default
    assert kind.model_validate({option: usual})
    other = not usual if isinstance(usual, bool) else usual + 1
    with pytest.raises(ValidationError, match=f"{option} = {other} is an option that this method does not read"):
        kind.model_validate({option: other})


@pytest.mark.parametrize(
    ("phase", "option", "value"),
    [
        ("inter", "margin_intra", 0.3),
        ("inter", "sum_epochs", 2),
        ("intra", "margin_phrase", 0.3),
        ("intra", "weight_local", 0.3),
        ("intra", "negatives", "softmax"),
        ("intra", "label_stopwords", "drop"),
    ],
)
def test_a_phase_of_ssamt_refuses_the_options_of_the_other(phase: str, option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=f"{option} = {value} is an option that this method does not read"):
        Ssamt.model_validate({"phase": phase, option: value})
    other = "intra" if phase == "inter" else "inter"
    assert getattr(Ssamt.model_validate({"phase": other, option: value}), option) == value
