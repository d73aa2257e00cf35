"""`itrpipe.load`: the scores of evaluation from photographs, features and sentences, whatever the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file

import itrpipe
from itrpipe.cli.export import Export
from itrpipe.cli.request import Request
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.features.embeddings import INNER_PRODUCT, read_embeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.storage.artifact import read_manifest
from tests.chains import ChainModel

RUNS = ("zero-shot.dual-encoder", "triplet.scan", "ssamt.ssamt", "ascl.ascl")


class Evaluated(NamedTuple):
    """A model in a folder, the test split, and the scores that evaluation ranked by.

    Attributes:
        folder: of `itrpipe export`.
        trained: artifact of `train`.
        images: the photographs; None where the features were imported.
        features: of the whole dataset; None where the model reads photographs.
        rows: of the split in the features.
        texts: captions.
        scores: [N, T].
    """

    folder: Path
    trained: Path
    images: list[Path] | None
    features: Path | None
    rows: np.ndarray
    texts: list[str]
    scores: np.ndarray


EXPORTED: dict[str, Evaluated] = {}


@pytest.fixture
def evaluated(
    model_of: Callable[[str], ChainModel], finished_chain: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Evaluated]:
    """Exports a run of `RUNS`, once."""

    def make(run: str) -> Evaluated:
        if run not in EXPORTED:
            model, folder = model_of(run), tmp_path_factory.mktemp("exported") / run
            Export(target=folder).export(Request(model.root, model.dataset, model.overrides, no_deps=True))
            inputs = model.inputs()
            split = PreparedDataset.open(inputs["prepare"]).split("test")
            photographs = inputs["prepare"] if model.dataset == "scenes" else finished_chain / "source"
            images: list[Path] | None = [photographs / file for file in split.files]
            path = None
            rows = np.arange(len(split.files))
            if "extract" in inputs:
                path = inputs["extract"] / FEATURES
                rows = FeatureFile.open(path).rows(split.image_ids.tolist())
                if read_manifest(inputs["extract"]).conf == "precomp":
                    images = None
            EXPORTED[run] = Evaluated(folder, model.trained, images, path, rows, split.texts, model.scores())
        return EXPORTED[run]

    return make


def test_score_gives_what_evaluation_ranks_by(evaluated: Callable[[str], Evaluated]) -> None:
    for run in RUNS:
        known, model = evaluated(run), itrpipe.load(evaluated(run).folder, device="cpu")
        assert model.embeds == (run == "zero-shot.dual-encoder")
        if known.features is not None:
            by_features = model.score(known.features, known.texts, batch_size=7)[known.rows]
            np.testing.assert_allclose(by_features, known.scores, atol=1e-6, rtol=0, err_msg=run)
        if known.images is None:
            with pytest.raises(UsageError, match=r"imported \(precomp\).*give features.h5 of `itrpipe extract --from"):
                model.score(["a.jpg"], known.texts)
        else:
            np.testing.assert_allclose(model.score(known.images, known.texts), known.scores, atol=1e-6, rtol=0)
            one = model.score(known.images[1], known.texts[2])
            np.testing.assert_allclose(one, known.scores[1:2, 2:3], atol=1e-6, rtol=0)


def test_embeddings_are_those_of_the_artifact(evaluated: Callable[[str], Evaluated]) -> None:
    known = evaluated("zero-shot.dual-encoder")
    model, written = itrpipe.load(known.trained), read_embeddings(known.trained / "embeddings.h5", "test")
    assert known.images
    pictures = [Image.open(path) for path in known.images]
    arrays = [np.asarray(each.convert("RGB")) for each in pictures]
    for images in (known.images, [str(path) for path in known.images], pictures, arrays, np.stack(arrays)):
        found = model.encode_images(images, batch_size=3)
        np.testing.assert_allclose(found, written.images, atol=1e-6)
        assert found.dtype == np.float32
    texts = model.encode_texts(known.texts, batch_size=3)
    np.testing.assert_allclose(texts, written.texts, atol=1e-6)
    assert (model.measure, model.embed_dim) == (INNER_PRODUCT, texts.shape[1])
    assert model.encode_images([]).shape == (0, model.embed_dim)
    assert model.score([], texts).shape == (0, len(texts))
    np.testing.assert_allclose(model.score(torch.from_numpy(written.images), texts), known.scores, atol=1e-6)


def test_search_ranks_images_for_a_sentence_and_texts_for_an_image(evaluated: Callable[[str], Evaluated]) -> None:
    for run in ("triplet.scan", "zero-shot.dual-encoder"):
        known = evaluated(run)
        model = itrpipe.load(known.folder)
        images: Any = known.images or known.features
        found = model.search(known.texts[3], images, top_k=100)
        expected = model.score(images, known.texts[3])[:, 0]
        assert [each.index for each in found] == np.argsort(-expected, kind="stable").tolist()
        assert [each.score for each in found] == pytest.approx(np.sort(expected)[::-1].tolist(), abs=1e-6)
    assert known.images
    best = model.search(str(known.images[2]), known.texts, top_k=2)
    assert [each.index for each in best] == np.argsort(-known.scores[2], kind="stable")[:2].tolist()


def test_what_cannot_be_read_is_told_in_one_line(evaluated: Callable[[str], Evaluated], tmp_path: Path) -> None:
    scan, pixels = evaluated("triplet.scan"), evaluated("zero-shot.dual-encoder")
    pairs, model = itrpipe.load(scan.folder), itrpipe.load(pixels.folder)
    (tmp_path / "no.jpg").write_bytes(b"no picture")
    given = [*(pixels.images or []), tmp_path / "no.jpg"]
    wide = evaluated("ascl.ascl").features
    assert wide is not None
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (UsageError, r"encode_texts; call score\(images, texts\)", lambda: pairs.encode_texts(["a dog"])),
        (UsageError, "has no embeddings", lambda: pairs.score(np.zeros((2, 8), np.float32), ["a dog"])),
        (DataError, "width 256 .* 8 by 'precomp'", lambda: pairs.score(wide, ["a dog"])),
        (DataError, r"no\.jpg", lambda: model.encode_images(given)),
        (DataError, r"image 0 is float32 \[4, 4, 3\]", lambda: model.encode_images([np.zeros((4, 4, 3), np.float32)])),
        (UsageError, "text 1 is ' '", lambda: model.encode_texts(["a dog", " "])),
        (UsageError, r"texts have shape \[2, 3\] .* 12", lambda: model.score(np.zeros((1, 12)), np.zeros((2, 3)))),
        (UsageError, "batch_size = 0", lambda: model.encode_texts(["a dog"], batch_size=0)),
        (MissingInputError, "nowhere/at/all", lambda: itrpipe.load("nowhere/at/all")),
        (ItrpipeError, "does not give it", lambda: itrpipe.load("x" * 5_000)),
        (UsageError, "artifact of extract", lambda: itrpipe.load(wide.parent)),
        (UsageError, "tpu", lambda: itrpipe.load(pixels.folder, device="tpu")),
    ]
    for kind, value, ask in cases:
        with pytest.raises(kind, match=value):
            ask()


def test_joint_models_of_transformers_embed_as_they_do_there(saved_encoders: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (40 + row, 60, 3), dtype=np.uint8) for row in range(3)]
    texts = ["a dog is on the road", "a cat"]
    pair = transformers.VisionTextDualEncoderModel.from_vision_text_pretrained(
        str(saved_encoders / "vit"), str(saved_encoders / "bert"), projection_dim=8
    )
    pair.save_pretrained(tmp_path)
    for name in ("vit", "bert"):
        for file in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
            if (saved_encoders / name / file).exists():
                shutil.copy(saved_encoders / name / file, tmp_path / file)
    # SigLIP 2 says nothing of padding in its configuration, and the default is not what its tokenizer pads with.
    other = Path(shutil.copytree(saved_encoders / "siglip", tmp_path / "siglip"))
    config = json.loads((other / "config.json").read_text())
    config["text_config"]["pad_token_id"] = 1
    (other / "config.json").write_text(json.dumps(config))
    for folder in (saved_encoders / "clip", saved_encoders / "siglip", other, tmp_path):
        theirs = transformers.AutoModel.from_pretrained(folder).eval()
        pixels = transformers.AutoImageProcessor.from_pretrained(folder)(images, return_tensors="pt")
        padding: Any = "max_length" if folder.name == "siglip" else True
        read = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=padding, return_tensors="pt")
        # SigLIP was trained without a mask, and its own tokenizer gives none.
        asked = {name: read[name] for name in ("input_ids", "attention_mask")[: 1 if folder.name == "siglip" else 2]}
        with torch.inference_mode():
            output = theirs(pixel_values=pixels["pixel_values"], **asked)
        model = itrpipe.load(folder)
        for found, expected in (
            (model.encode_images(images), output.image_embeds),
            (model.encode_texts(texts), output.text_embeds),
        ):
            expected = torch.nn.functional.normalize(expected, dim=1)
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5, err_msg=folder.name)


def changed(folder: Path, to: Path, file: str, *keys: str, value: Any) -> Path:
    """A copy of a folder in whose JSON file one value is another; without its `export.json`, which would tell."""
    shutil.copytree(folder, to)
    (to / "export.json").unlink(missing_ok=True)
    content = json.loads((to / file).read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (to / file).write_text(json.dumps(content))
    return to


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ("backbone", "nope"),
        ("backbone", None),
        ("model", None),
        ("model embed_dim", -1),
        ("model embed_dim", 10**12),
        ("model embed_dim", float("inf")),
        ("image_dim", "x"),
        ("itrpipe", None),
        ("itrpipe run", [1]),
        ("itrpipe features", {}),
        ("itrpipe features settings", {}),
        ("itrpipe parser", None),
        ("resample", 99),
        ("image_std", [0, 0, 0]),
        ("rescale_factor", 0),
    ],
)
def test_a_damaged_configuration_is_told_in_one_line(
    evaluated: Callable[[str], Evaluated], saved_encoders: Path, tmp_path: Path, keys: str, value: Any
) -> None:
    of_images = keys in ("resample", "image_std", "rescale_factor")
    folder = saved_encoders / "clip" if of_images else evaluated("ssamt.ssamt").folder
    file = "preprocessor_config.json" if of_images else "config.json"
    with pytest.raises(DataError) as caught:
        itrpipe.load(changed(folder, tmp_path / "model", file, *keys.split(), value=value))
    assert "\n" not in str(caught.value)


def test_a_file_of_an_export_that_changed_is_told_but_for_its_card(
    evaluated: Callable[[str], Evaluated], tmp_path: Path
) -> None:
    for run, name in (("ascl.ascl", "text/model.safetensors"), ("triplet.scan", "vocab.json")):
        folder = Path(shutil.copytree(evaluated(run).folder, tmp_path / run))
        (folder / "README.md").write_text("edited")
        itrpipe.load(folder)
        path = folder / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{name} does not match its recorded sha256"):
            itrpipe.load(folder)


def test_a_pickle_is_refused_by_name(saved_encoders: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved_encoders / "clip", tmp_path / "clip"))
    state = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    with pytest.raises(MissingInputError, match=r"has no model\.safetensors"):
        itrpipe.load(copy)
    torch.save(state, copy / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"pytorch_model\.bin is a pickle, .* never loaded"):
        itrpipe.load(copy)


def test_a_vision_encoder_encodes_images_alone_and_a_text_encoder_is_refused(
    saved_encoders: Path, finished_chain: Path
) -> None:
    model = itrpipe.load(saved_encoders / "vit")
    photographs = sorted((finished_chain / "source" / "flickr30k-images").iterdir())[:3]
    np.testing.assert_allclose(np.linalg.norm(model.encode_images(photographs), axis=1), 1, rtol=1e-5)
    with pytest.raises(UsageError, match="encodes images alone"):
        model.encode_texts("a dog")
    with pytest.raises(MissingInputError, match="is no encoder of images"):
        itrpipe.load(saved_encoders / "bert")


def test_weights_of_another_machine_are_not_looked_for_here(
    evaluated: Callable[[str], Evaluated], tmp_path: Path
) -> None:
    exported, key = evaluated("ascl.ascl").folder, ("itrpipe", "features", "of_anywhere")
    assert json.loads((exported / "config.json").read_text())["itrpipe"]["features"]["of_anywhere"] is True
    copy = changed(exported, tmp_path / "model", "config.json", *key, value=False)
    with pytest.raises(UsageError, match=r"'scenes', whose weights lay in a file of the machine .*; give features\.h5"):
        itrpipe.load(copy).score(["a.jpg"], ["a dog"])
