"""Fixtures of all tests: a tiny dataset with its features, a finished chain over it, and the command line."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image
from typer.main import get_command

from itrpipe.cli import main
from itrpipe.config import Override, parse_override
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.storage.artifact import OutputFile, read_manifest, write_manifest
from itrpipe.storage.disk import file_digest
from tests.definitions import save_definition

pytest_plugins = ["tests.chains"]

# How long an example takes depends on what else the machine does, and says nothing about the code.
settings.register_profile("itrpipe", deadline=None)
settings.load_profile("itrpipe")

SIZES = {"train": 12, "val": 4, "test": 4}
CAPTIONS_PER_IMAGE = 5
REGIONS, REGION_DIM = 4, 8
SUBJECTS = ("dog", "cat", "horse", "child", "bird")
PLACES = ("road", "beach", "field", "roof")
# A model of a few thousand weights, and negatives that twelve training images can give.
TINY = (
    "train.epochs=1",
    "train.batch_size=16",
    "train.model.embed_dim=8",
    "train.model.word_dim=8",
    "train.min_word_count=1",
    "evaluate.bootstrap_samples=100",
)
TINY_AOQ = ("aoq.top_texts=5", "aoq.top_images=3", "mine_negatives.num_texts=5", "mine_negatives.num_images=3")


@dataclass(frozen=True)
class TinySource:
    """Folder of a dataset as a user would bring it, in the shape of Flickr30K.

    Attributes:
        folder: holds all the rest.
        captions: the caption file.
        images: folder of the JPEG files.
        features: the precomp folder.
    """

    folder: Path

    @property
    def captions(self) -> Path:
        return self.folder / "dataset_flickr30k.json"

    @property
    def images(self) -> Path:
        return self.folder / "flickr30k-images"

    @property
    def features(self) -> Path:
        return self.folder / "f30k_precomp"


@dataclass(frozen=True)
class Outcome:
    """What a command did: exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def write_source(folder: Path) -> TinySource:
    """Writes twenty small images, five captions each, and random features for all of them."""
    source = TinySource(folder)
    source.images.mkdir(parents=True)
    source.features.mkdir()
    random = np.random.default_rng(0)
    records = []
    for split, count in SIZES.items():
        own = [_write_image(source, split, len(records) + row, random) for row in range(count)]
        _write_precomp(source, split, own, random)
        records += own
    source.captions.write_text(json.dumps({"dataset": "flickr30k", "images": records}), encoding="utf-8")
    return source


def _write_image(source: TinySource, split: str, number: int, random: np.random.Generator) -> dict:
    file = f"{1000 + number}.jpg"
    Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(source.images / file, quality=60)
    subject, place = SUBJECTS[number % len(SUBJECTS)], PLACES[number % len(PLACES)]
    sentences = [
        {"raw": f"A {subject} number {number} is on the {place} {each}.", "sentid": number * CAPTIONS_PER_IMAGE + each}
        for each in range(CAPTIONS_PER_IMAGE)
    ]
    return {"filename": file, "split": split, "imgid": number, "sentences": sentences}


def _write_precomp(source: TinySource, split: str, records: list[dict], random: np.random.Generator) -> None:
    name = {"val": "dev"}.get(split, split)
    regions = random.normal(size=(len(records), REGIONS, REGION_DIM)).astype(np.float32)
    np.save(source.features / f"{name}_ims.npy", regions)
    ids = "".join(f"{record['filename']}\n" for record in records)
    (source.features / f"{name}_ids.txt").write_text(ids, encoding="utf-8")
    captions = "".join(f"{sentence['raw']}\n" for record in records for sentence in record["sentences"])
    (source.features / f"{name}_caps.txt").write_text(captions, encoding="utf-8")


def tiny(method: str, *more: str) -> list[Override]:
    """Overrides of `evaluate` that make it and all it needs small for VSE++ and a method, and `more` of them."""
    chosen = (f"method={method}", "backbone=vsepp", *TINY, *(TINY_AOQ if method == "aoq" else ()))
    return [parse_override(text) for text in (*chosen, *more)]


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    """An empty data folder."""
    return tmp_path / "data"


@pytest.fixture
def precomp_dataset(tmp_path: Path) -> TinySource:
    """A source folder of this test's own."""
    return write_source(tmp_path / "source")


@pytest.fixture
def defined(data_root: Path, precomp_dataset: TinySource) -> Path:
    """A data folder that knows the dataset `tiny` and its features and holds no artifact."""
    define(data_root, precomp_dataset)
    return data_root


def define(root: Path, source: TinySource) -> None:
    """Tells a data folder where the dataset `tiny` and its features lie."""
    prepare = StageDefinition(conf="files", source=str(source.folder))
    features = StageDefinition(conf="precomp", source=str(source.features))
    save_definition(root, "tiny", DatasetDefinition(prepare=prepare, features={"precomp": features}))


@pytest.fixture
def any_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model of the hub can be fetched, as far as plans ask; nothing is."""
    monkeypatch.setattr("itrpipe.encoders.folders._require_on_hub", lambda model, revision: None)


@pytest.fixture(scope="session", autouse=True)
def faster() -> Iterable[None]:
    """Builds the command line once and not for every command, and waits for no disk, whose power does not fail."""
    with (
        mock.patch("typer.main.get_command", functools.cache(get_command)),
        mock.patch("os.fsync", return_value=None),
    ):
        yield


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the command line in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["itrpipe", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def recorded() -> Callable[[Path], None]:
    """Writes a file of an artifact that a test has changed into the manifest, as if its stage had written it so."""

    def record(path: Path) -> None:
        manifest = read_manifest(path.parent)
        file = OutputFile(bytes=path.stat().st_size, sha256=file_digest(path))
        changed = manifest.model_copy(update={"outputs": {**manifest.outputs, path.name: file}})
        write_manifest(path.parent, changed)

    return record


@pytest.fixture(scope="session")
def flipped() -> Callable[[Path], None]:
    """Flips the last bit of a file."""

    def flip(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    return flip


@pytest.fixture(scope="session", name="tiny")
def tiny_fixture() -> Callable[..., list[Override]]:
    """`tiny`, for tests."""
    return tiny


@pytest.fixture(scope="session")
def saved_encoders(once: Callable[..., Path]) -> Path:
    """A folder with tiny encoders of random weights as transformers saves them: `vit`, `bert`, `clip` and `siglip`."""
    return once("encoders", _save_encoders)


def _save_encoders(root: Path) -> None:
    import torch
    import transformers

    layers: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    vision: dict[str, Any] = {"image_size": 32, "patch_size": 16, **layers}
    limits = {"bert": 40, "clip": 20, "siglip": 16}
    words = {name: _save_tokenizer(root / name, limit) for name, limit in limits.items()}
    text: dict[str, dict[str, Any]] = {
        name: {"vocab_size": words[name], "max_position_embeddings": limit, "pad_token_id": 0, **layers}
        for name, limit in limits.items()
    }
    for name in ("clip", "siglip"):
        text[name] |= {"bos_token_id": 2, "eos_token_id": 3}
    siglip: dict[str, Any] = {"vision_config": vision, "text_config": {**text["siglip"], "projection_size": 16}}
    clip = transformers.CLIPConfig(vision_config=vision, text_config=text["clip"], projection_dim=12)
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**vision)).save_pretrained(root / "vit")
    transformers.BertModel(transformers.BertConfig(**text["bert"])).save_pretrained(root / "bert")
    transformers.CLIPModel(clip).save_pretrained(root / "clip")
    transformers.SiglipModel(transformers.SiglipConfig(**siglip)).save_pretrained(root / "siglip")
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=size).save_pretrained(root / "vit")
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(root / "clip")
    transformers.SiglipImageProcessor(size=size).save_pretrained(root / "siglip")


@pytest.fixture(scope="session")
def saved_gpt2(once: Callable[..., Path]) -> Path:
    """A folder with a tiny GPT-2 of random weights, which reads ten tokens, as transformers saves it."""
    return once("gpt2", _save_gpt2)


def _save_gpt2(folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<|endoftext|>", "<unk>", "a", "is", "on", "the", "runs", *SUBJECTS, *PLACES]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    special: dict[str, Any] = {"bos_token": words[0], "eos_token": words[0], "unk_token": words[1]}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)
    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 10, "vocab_size": len(words)}
    torch.manual_seed(0)
    # Transformers' own deviation of 0.02 would make every word about equally likely.
    config = transformers.GPT2Config(initializer_range=0.5, bos_token_id=0, eos_token_id=0, **sizes)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def _save_tokenizer(folder: Path, limit: int) -> int:
    """Saves a tokenizer of the words of the tiny captions and single digits; returns how many tokens it has.

    That of SigLIP does not tell what is padding.
    """
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    digits = [str(number) for number in range(10)]
    words = [*["a", "number", "is", "on", "the"], *SUBJECTS, *PLACES, *digits, *(f"##{digit}" for digit in digits)]
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)  # pyright: ignore
    special: dict[str, Any] = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = ["input_ids"] if folder.name == "siglip" else ["input_ids", "attention_mask"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=limit, model_input_names=names, **special
    )
    tokenizer.save_pretrained(folder)
    return len(vocabulary)


@pytest.fixture
def chain(finished_chain: Path, tmp_path: Path) -> Path:
    """This test's own copy of the data folder of the finished chain; the sources stay shared."""
    return Path(shutil.copytree(finished_chain / "data", tmp_path / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: what one process has to end alone is then short."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
