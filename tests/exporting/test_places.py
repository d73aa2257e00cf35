"""What others read names files, and not the folders of the machine that they lay in."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.exporting.places import command_without_places, text_without_places, without_places


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("itrpipe train --data /mnt/alice/data --seed 1", "itrpipe train --data data --seed 1"),
        ("itrpipe train --data=/mnt/alice/data", "itrpipe train --data=data"),
        ("itrpipe prepare --source '/mnt/my disk/flickr30k/'", "itrpipe prepare --source flickr30k"),
        ("itrpipe prepare --source ~/flickr30k", "itrpipe prepare --source flickr30k"),
        ("itrpipe prepare --source ~alice/flickr30k", "itrpipe prepare --source flickr30k"),
        ("itrpipe prepare --source ../../alice/flickr30k", "itrpipe prepare --source flickr30k"),
        ("itrpipe prepare --source sets/flickr30k", "itrpipe prepare --source sets/flickr30k"),
        ("itrpipe train --vision openai/clip-vit-base-patch32", "itrpipe train --vision openai/clip-vit-base-patch32"),
        ("itrpipe train --set=train.model.initial=/w/u.pt", "itrpipe train --set=train.model.initial=u.pt"),
        ("itrpipe train --set train.model.initial=/w/u.pt", "itrpipe train --set train.model.initial=u.pt"),
        ("itrpipe extract --set 'map={a = \"/x/y\"}'", "itrpipe extract --set 'map={a = \"y\"}'"),
        ('itrpipe train --set \'trackers=["a", "/b/c"]\'', 'itrpipe train --set \'trackers=["a", "c"]\''),
        ("itrpipe search 'a dog / a cat' /", "itrpipe search 'a dog / a cat' /"),
    ],
)
def test_commands_name_files_without_their_places(command: str, shown: str) -> None:
    assert command_without_places(command) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"initial": "/mnt/w/u.pt", "layers": 2, "on": None}, {"initial": "u.pt", "layers": 2, "on": None}),
        ({"a": ["/x/y", {"b": "../z"}]}, {"a": ["y", {"b": "z"}]}),
        ("google/vit", "google/vit"),
        ("/mnt/my disk/the model", "the model"),
        ("", ""),
    ],
)
def test_settings_name_files_without_their_places(value: Any, shown: Any) -> None:
    assert without_places(value) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/mnt/a/captions.csv: names no splits; see /mnt/a/b", "captions.csv: names no splits; see b"),
        (
            "3 of 4 images of /mnt/a cannot be used (x/1.jpg is missing)",
            "3 of 4 images of a cannot be used (x/1.jpg is missing)",
        ),
        ("1,000 images / 5,000 captions", "1,000 images / 5,000 captions"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)
def test_messages_name_files_without_their_places(text: str, shown: str) -> None:
    assert text_without_places(text) == shown


@given(st.lists(st.text(st.sampled_from("ab/ ~.='\"[]"), max_size=12), max_size=4))
def test_once_is_enough(arguments: list[str]) -> None:
    once = command_without_places(shlex.join(arguments))
    assert len(shlex.split(once)) == len(arguments)
    assert not any(each.startswith(("/", "../", "~/")) and each.strip("/.~") for each in shlex.split(once))
