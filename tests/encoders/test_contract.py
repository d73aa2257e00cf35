"""Every type of pretrained model keeps the contract of `itrpipe.encoders`, as the library's own calls have it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch import Tensor

from itrpipe.encoders.encoder import TEXT, VISION, Encoder, open_encoder
from itrpipe.encoders.folders import READERS, require_model
from itrpipe.encoders.texts import Dense
from itrpipe.errors import MissingInputError, UsageError
from tests.encoders import zoo

IMAGES = [np.random.default_rng(row).integers(0, 256, (50 - row, 40, 3), dtype=np.uint8) for row in range(3)]
CAPTIONS = ["a dog on the grass", "two red cat", "the blue dog runs on a beach"]
_SEEING = [*zoo.JOINT, *zoo.VISION_ALONE]
_READING = [*zoo.JOINT, *zoo.TEXT_ALONE]
# What pretraining alone needs, and the parts of both sides of BLIP that compare regions with words.
_UNTRAINED = ("crossattention", "pooler", "mask_token", "logit_scale", "logit_bias", "temperature")


@pytest.fixture(scope="module")
def saved(once: Callable[..., Path]) -> Callable[[str], Path]:
    """Give the folder of a tiny model of a type."""
    return lambda name: once(f"encoder-{name}", lambda folder: zoo.save(name, folder))


def sides_of(name: str) -> tuple[str, ...]:
    """Return the sides that a type of model has."""
    sides = {VISION: name in _SEEING, TEXT: name in _READING}
    return tuple(side for side, has in sides.items() if has)


def opened(folder: Path) -> Encoder:
    """Open a tiny model."""
    encoder, notes = open_encoder(str(folder), sides=sides_of(folder.name.removeprefix("encoder-")))
    assert notes == ()
    return encoder


def test_a_network_is_opened_without_the_configurations_of_all_others(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def imports_all(*_: Any) -> None:
        raise AssertionError("transformers imports every network")

    monkeypatch.setattr("transformers.models.auto.auto_factory._LazyAutoMapping.keys", imports_all)
    opened(saved("bert"))


def frames_of(encoder: Encoder) -> Tensor:
    """Make frames of the images."""
    assert encoder.images is not None
    return torch.stack([encoder.images.framed(image) for image in IMAGES])


def tokens_of(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """Make padded token ids of the captions, and their lengths."""
    assert encoder.texts is not None
    found = encoder.texts.tokenizer(CAPTIONS, truncation=True, max_length=encoder.texts.max_tokens)["input_ids"]
    lengths = torch.tensor([len(ids) for ids in found])
    tokens = torch.full((len(CAPTIONS), int(lengths.max())), 7)  # what is behind a length plays no part
    for row, ids in enumerate(found):
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens, lengths


def assert_close(found: Tensor, due: Tensor) -> None:
    """Compare vectors by their largest value."""
    assert found.shape == due.shape
    assert float((found - due).abs().max()) <= 1e-5 * max(1.0, float(due.abs().max()))


def vectors(found: Any) -> Tensor:
    """Take the vectors out of what the library returns."""
    return found if isinstance(found, Tensor) else found.pooler_output.flatten(1)


@pytest.mark.parametrize("name", _SEEING)
@torch.no_grad()
def test_images_are_encoded_as_by_the_library_alone_or_in_a_batch(name: str, saved: Callable[[str], Path]) -> None:
    folder = saved(name)
    encoder = opened(folder)
    frames = frames_of(encoder)
    found = encoder.encode_images(frames)
    assert found.std(0).max() > 0
    assert_close(torch.cat([encoder.encode_images(frame[None]) for frame in frames]), found)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    inputs = processor([Image.fromarray(image) for image in IMAGES], return_tensors="pt")
    network = transformers.AutoModel.from_pretrained(folder).eval()
    theirs = network.get_image_features(**inputs) if encoder.is_joint else network(**inputs)
    assert_close(found, vectors(theirs))
    seen = encoder.image_outputs(frames)
    assert seen.grid.rows * seen.grid.columns <= seen.tokens.shape[1]


@pytest.mark.parametrize("name", _READING)
@torch.no_grad()
def test_captions_are_encoded_as_by_the_library_alone_or_in_a_batch(name: str, saved: Callable[[str], Path]) -> None:
    folder = saved(name)
    encoder = opened(folder)
    tokens, lengths = tokens_of(encoder)
    found = encoder.encode_texts(tokens, lengths)
    alone = [
        encoder.encode_texts(ids[None, :length], length[None]) for ids, length in zip(tokens, lengths, strict=True)
    ]
    assert_close(torch.cat(alone), found)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padding = True if "attention_mask" in tokenizer.model_input_names else "max_length"
    inputs = tokenizer(CAPTIONS, padding=padding, return_tensors="pt")
    network = transformers.AutoModel.from_pretrained(folder).eval()
    if encoder.is_joint:
        theirs = vectors(network.get_text_features(**inputs))
    else:
        real = inputs["attention_mask"][..., None]
        theirs = (network(**inputs).last_hidden_state * real).sum(1) / real.sum(1)
    assert_close(found, theirs)


@pytest.mark.parametrize("name", zoo.ALL)
def test_a_trained_encoder_is_saved_as_the_folder_that_the_library_opens(
    name: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder = opened(saved(name))
    before = {key: weights.detach().clone() for key, weights in encoder.named_parameters()}
    encoder.train()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    for _ in range(2):
        found = []
        if encoder.images is not None:
            found.append(encoder.encode_images(frames_of(encoder)))
        if encoder.texts is not None:
            found.append(encoder.encode_texts(*tokens_of(encoder)))
        optimizer.zero_grad()
        sum(each.square().mean() for each in found).backward()  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()
    kept = [key for key, weights in encoder.named_parameters() if weights.numel() and torch.equal(weights, before[key])]
    assert [key for key in kept if not any(part in key for part in _UNTRAINED)] == []
    encoder.eval().save(tmp_path / "saved")
    again, _ = open_encoder(str(tmp_path / "saved"), sides=sides_of(name))
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "saved").state_dict()
    with torch.no_grad():
        if encoder.images is not None:
            frames = frames_of(encoder)
            assert torch.equal(again.encode_images(frames), encoder.encode_images(frames))
        if encoder.texts is not None:
            tokens = tokens_of(encoder)
            assert torch.equal(again.encode_texts(*tokens), encoder.encode_texts(*tokens))
    for key, weights in encoder.network.state_dict().items():
        assert torch.equal(theirs[key], weights)


@pytest.mark.parametrize("name", zoo.TEXT_ALONE)
def test_sentence_transformers_opens_an_encoder_of_captions(
    name: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = opened(saved(name))
    encoder.save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(CAPTIONS, convert_to_tensor=True)
    with torch.no_grad():
        assert_close(encoder.encode_texts(*tokens_of(encoder)), theirs)


@pytest.mark.parametrize("name", zoo.JOINT)
def test_the_sides_of_a_joint_model_are_apart(name: str, saved: Callable[[str], Path]) -> None:
    encoder = opened(saved(name))
    sides = [encoder.parts(side) for side in (VISION, TEXT)]
    assert all(sides)
    assert not sides[0].keys() & sides[1].keys()
    used = {id(weights) for parts in sides for part in parts.values() for weights in part.parameters()}
    left = [key for key, weights in encoder.network.named_parameters() if id(weights) not in used]
    assert [key for key in left if not any(part in key for part in _UNTRAINED)] == []


def test_what_follows_the_pooling_belongs_to_captions(saved: Callable[[str], Path]) -> None:
    encoder = opened(saved("bert"))
    assert encoder.texts is not None
    layer = Dense({"in_features": 16, "out_features": 8})
    encoder.texts.layers.append(layer)
    assert layer in encoder.parts(TEXT)["layers"].children()


@pytest.mark.parametrize("name", [*zoo.VISION_ALONE, *zoo.TEXT_ALONE])
def test_the_configuration_shows_that_a_model_reads_one_side_alone(
    name: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved(name), tmp_path / "copy"))
    (own,) = sides_of(name)
    require_model(str(folder), sides=(own,))
    other = TEXT if own == VISION else VISION
    (folder / READERS[other][0]).write_text("{}", encoding="utf-8")
    with pytest.raises(MissingInputError, match="reads none"):
        require_model(str(folder), sides=(other,))


def test_a_model_whose_pooling_is_unknown_is_refused(tmp_path: Path) -> None:
    zoo.save("flava", tmp_path)
    with pytest.raises(UsageError, match=r"BaseModelOutputWithPooling with \[1, 5, 12\]"):
        open_encoder(str(tmp_path))
