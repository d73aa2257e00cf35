"""A trained model as an object: images and sentences in, embeddings, scores and the best matches out.

`load` opens what `itrpipe export` or `itrpipe train` wrote, or a joint model of transformers.

Shapes: N images, T texts, D embedding width.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.prepared import Split, given_split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.encoders.encoder import TEXT, VISION, Encoder, open_encoder
from itrpipe.encoders.folders import CONFIG, fetch_folder, read_config, reads_side
from itrpipe.engine.work import resolve_device
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.evaluation.metrics import check_finite
from itrpipe.exporting.model import described_inputs
from itrpipe.features.declaration import recorded_passes
from itrpipe.features.embeddings import score_matrix
from itrpipe.features.extractors.base import Extractor
from itrpipe.features.photographs import Photograph, open_extractors, read_frames, read_photographs
from itrpipe.features.store import FeatureFile
from itrpipe.models.base import EmbeddingModel, ImageBatch, ImageEncoding, l2_normalise
from itrpipe.models.captions import PieceIds, WordIds
from itrpipe.models.declaration import LONGEST
from itrpipe.models.dual_encoder import declaration, network
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.scene_graph.build import parse_captions
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.scene_graph.settings import ParseSettings
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, graphs_table, with_ids, write_graphs
from itrpipe.storage.artifact import MANIFEST, check_export, open_artifact
from itrpipe.storage.disk import read_json, reading
from itrpipe.training.batches import blocks
from itrpipe.training.data import PhraseTexts, SplitData, TokenTexts, open_split, read_captions
from itrpipe.training.encoding import SplitEncoder, embeddings
from itrpipe.training.saved import ABOUT, SavedModel, load_model, max_tokens_of

Images: TypeAlias = Photograph | Sequence[Photograph] | FeatureFile
"""One photograph or several, or features: a path that ends in .h5, or such a file opened."""
_FEATURES = ".h5"
_IMAGES_KEPT = 1_024
"""Images whose encodings are kept while all texts pass by."""
_COLOURS = 3


class Stored(NamedTuple):
    """Images whose features lie in a file; taken wherever `Images` are.

    Attributes:
        features: the file.
        ids: of these images.
    """

    features: FeatureFile
    ids: list[str]


class DatasetCaptions(NamedTuple):
    """Captions of a dataset; taken wherever sentences are.

    Attributes:
        split: that has them.
        graphs: artifact of `parse` with their scene graphs, for models that read phrases.
    """

    split: Split
    graphs: Path | None = None


class Match(NamedTuple):
    """A candidate that a search found.

    Attributes:
        index: place among the candidates.
        score: with the query; higher is better.
    """

    index: int
    score: float


class VisionModel(EmbeddingModel):
    """A vision encoder alone, which compares images with images.

    Args:
        vision: the encoder.
    """

    def __init__(self, vision: Encoder) -> None:
        super().__init__()
        self.vision = vision
        self.embed_dim = vision.image_width

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        """Return embeddings [B, D] of unit length."""
        assert images.pixels is not None
        vectors = self.vision.encode_images(images.pixels).float()
        return ImageEncoding(l2_normalise(vectors, dim=-1))


class RetrievalModel:
    """A trained model; made by `itrpipe.load`.

    Images are photographs (paths of files, images of Pillow, arrays [H, W, 3] uint8 RGB), which the extractor of the
    model's own features reads, or these features themselves: a `features.h5`. What is asked for is computed in batches,
    and of photographs no more than two batches are in memory.

    Args:
        saved: the model.
        label: its name, for messages.
        device: `cpu` or `cuda`.
        features: name of what it reads of images.
        extractors: opens the extractors of these features; of none where the model reads photographs itself.
        parser: gives captions their scene graphs, for models that read phrases.

    Attributes:
        saved, label, device: as given.

    Example:
        >>> model = itrpipe.load("exported")  # doctest: +SKIP
        >>> images, texts = model.encode_images(["a.jpg", "b.jpg"]), model.encode_texts(["two dogs"])  # doctest: +SKIP
        >>> model.score(images, texts)  # [2, 1]  # doctest: +SKIP
    """

    def __init__(
        self,
        saved: SavedModel,
        label: str,
        device: str,
        features: str = "photographs",
        extractors: Callable[[], dict[str, Extractor]] = dict,
        parser: ParseSettings | None = None,
    ) -> None:
        self.saved = saved
        self.label = label
        self.device = device
        self._features = features
        self._extractors = cache(extractors)
        self._parser = parser
        self._place = torch.device(device)
        self._model = saved.model.to(self._place)

    @property
    def embeds(self) -> bool:
        """Tell whether an image and a text are one vector each; else only `score` and `search` are defined."""
        return isinstance(self._model, EmbeddingModel)

    @property
    def measure(self) -> str | None:
        """Return how embeddings are compared: `inner product` or `order violation`; None where there are none."""
        return self._model.measure if self.embeds else None

    @property
    def embed_dim(self) -> int:
        """Return D, the width of its embeddings, or of its regions and words."""
        return self.saved.embed_dim

    def encode_images(
        self,
        images: Images,
        batch_size: int = 64,
        progress: bool = False,
        refused: Callable[[int, str], object] | None = None,
    ) -> np.ndarray:
        """Embed images.

        Args:
            images: N photographs, or features, see the class.
            batch_size: images per forward pass.
            progress: show it, on standard error.
            refused: is told the place and the reason of each photograph that cannot be used, which has no row then.

        Returns:
            [N, D] float32, on the CPU; see `measure`.

        Raises:
            UsageError: the model has no embeddings, or its features were imported and photographs are given.
            DataError: an image cannot be used and `refused` is None, or the features are others than the model's.
        """
        model = self._embedding_model("encode_images")
        count, batches = self._images(images, batch_size, refused)
        vectors = [np.empty((0, self.embed_dim), dtype=np.float32)]
        with _task("encoding images", count, progress) as advance, torch.inference_mode():
            for batch in batches:
                encoding = model.encode_images(batch.to(self._place))
                vectors.append(encoding.embedding.float().cpu().numpy())
                advance(len(vectors[-1]))
        return np.concatenate(vectors)

    def encode_texts(self, texts: str | Sequence[str], batch_size: int = 64, progress: bool = False) -> np.ndarray:
        """Embed sentences.

        Args:
            texts: T sentences.
            batch_size: sentences per forward pass.
            progress: show it, on standard error.

        Returns:
            [T, D] float32, on the CPU; see `measure`.

        Raises:
            UsageError: the model has no embeddings, or a text is empty, no Unicode or too long.
        """
        model = self._embedding_model("encode_texts")
        captions = self._texts(texts)
        count = len(captions.lengths)
        vectors = [np.empty((0, self.embed_dim), dtype=np.float32)]
        with _task("encoding texts", count, progress) as advance:
            encoder = SplitEncoder(model, self._place, _positive(batch_size))
            for block in embeddings(encoder.texts(captions, np.arange(count))):
                vectors.append(block)
                advance(len(block))
        return np.concatenate(vectors)

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a sentence that the model does not know; none where its tokenizer spells every word.

        Raises:
            UsageError: it knows none of them, so that any order would be chance, or reads no text.
        """
        self._require_texts()
        tokens = self.saved.tokens
        captions = given_split([text])
        if isinstance(tokens, PieceIds):
            return []
        if isinstance(tokens, WordIds):
            vocabulary = tokens.vocabulary
            column = tokens.part.words(captions)
        else:
            vocabulary = tokens
            column = captions.tokens
        words = []
        unknown = []
        for word in dict.fromkeys(column.flatten().to_pylist()):
            if any(map(str.isalnum, word)):
                words.append(word)
                if word not in vocabulary.ids:
                    unknown.append(word)
        if words and unknown == words:
            raise UsageError(
                f"{self.label} knows no word of the query ({', '.join(words)}), so any order would be chance; search "
                "with words of its training captions"
            )
        return unknown

    def score(
        self,
        images: Images | torch.Tensor,
        texts: str | Sequence[str] | np.ndarray | torch.Tensor,
        batch_size: int = 64,
        progress: bool = False,
    ) -> np.ndarray:
        """Score every image with every text; higher is better.

        Args:
            images: N, as `encode_images` takes them, or what it has returned.
            texts: T, as `encode_texts` takes them, or what it has returned.
            batch_size: images or texts per forward pass.
            progress: show it, on standard error.

        Returns:
            [N, T] float32: what `itrpipe evaluate` ranks by.

        Raises:
            UsageError, DataError: see `encode_images` and `encode_texts`.
        """
        image_vectors = _vectors(images)
        text_vectors = _vectors(texts)
        if not self.embeds:
            if image_vectors is not None or text_vectors is not None:
                raise UsageError(
                    f"{self.label} scores images and texts together and has no embeddings; give both as they are"
                )
            return self._pair_scores(images, texts, batch_size, progress)
        if image_vectors is None:
            image_vectors = self.encode_images(cast(Any, images), batch_size, progress)
        self._check_shape("images", image_vectors)
        if text_vectors is None:
            text_vectors = self.encode_texts(cast(Any, texts), batch_size, progress)
        self._check_shape("texts", text_vectors)
        if not len(image_vectors) or not len(text_vectors):
            return np.empty((len(image_vectors), len(text_vectors)), dtype=np.float32)
        return score_matrix(image_vectors, text_vectors, cast(str, self.measure))

    def search(
        self,
        query: Photograph,
        candidates: Images | Sequence[str] | torch.Tensor,
        top_k: int = 10,
        batch_size: int = 64,
        progress: bool = False,
    ) -> list[Match]:
        """Find the candidates that fit a query best, best first; equal scores in the order of the candidates.

        Args:
            query: a sentence, which finds images; or one image, which finds texts. Text that is the path of a file is
                an image.
            candidates: images for a sentence and texts for an image, as `score` takes them; embeddings of the many
                that are searched often are computed once.
            top_k: how many are wanted; fewer come where there are fewer.
            batch_size, progress: see `score`.

        Raises:
            UsageError, DataError: see `score`.
        """
        if isinstance(query, str) and not (os.path.isfile(query) or in_archive(Path(query))):
            scores = self.score(cast(Any, candidates), [query], batch_size, progress)[:, 0]
        else:
            scores = self.score([query], cast(Any, candidates), batch_size, progress)[0]
        rows = best(scores, _positive(top_k, "top_k"))
        return [Match(row, float(scores[row])) for row in rows.tolist()]

    def _check_shape(self, what: str, vectors: np.ndarray) -> None:
        if vectors.ndim != 2 or vectors.shape[1] != self.embed_dim:
            raise UsageError(
                f"embeddings of {what} have shape {list(vectors.shape)} and {self.label} gives {self.embed_dim} "
                "numbers for each; encode them with this model"
            )

    def _pair_scores(self, images: Any, texts: Any, batch_size: int, progress: bool) -> np.ndarray:
        encoder = SplitEncoder.of(self.saved, self._place, batch_size)
        count, batches = self._images(images, batch_size)
        captions = self._texts(texts)
        rows = np.arange(len(captions.lengths))
        scores = np.empty((count, len(rows)), dtype=np.float32)
        done = 0
        with _task("scoring", scores.size, progress, "pairs") as advance, torch.inference_mode():
            while done < count and len(rows):
                encodings = []
                for batch in islice(batches, max(1, _IMAGES_KEPT // batch_size)):
                    encodings.append(self._model.encode_images(batch.to(self._place)))
                block = encoder.scores(encodings, encoder.texts(captions, rows), advance)
                scores[done : done + len(block)] = block
                done += len(block)
        return scores

    def _embedding_model(self, method: str) -> EmbeddingModel:
        if not isinstance(self._model, EmbeddingModel):
            raise UsageError(
                f"{self.label} scores images and texts together and has no embeddings, so there is no {method}; call "
                "score(images, texts)"
            )
        return self._model

    def _require_texts(self) -> None:
        if isinstance(self._model, VisionModel):
            raise UsageError(
                f"{self.label} encodes images alone, and reads no sentence; search with --image FILE, or index with a "
                "model of images and captions, such as CLIP"
            )

    def _texts(self, texts: Any) -> TokenTexts | PhraseTexts:
        self._require_texts()
        if isinstance(texts, DatasetCaptions):
            return self._captions(texts.split, texts.graphs)
        sentences = [texts] if isinstance(texts, str) else list(texts)
        split = given_split(sentences)
        if self.saved.settings.reads_phrases:  # through a file of scene graphs, as the artifact of `parse` has one
            assert self._parser is not None
            table = with_ids(split.captions, graphs_table(parse_captions(self._parser, split.texts)))
            with tempfile.TemporaryDirectory() as folder:
                write_graphs(Path(folder) / SCENE_GRAPHS_FILE, [table])
                captions = self._captions(split, Path(folder))
        else:
            captions = self._captions(split)
        longest = max_tokens_of(self.saved.model)
        is_too_long = captions.lengths > longest
        if is_too_long.any():
            text = split.texts[int(np.argmax(is_too_long))]
            raise UsageError(f"{text[:60]!r} has more than the {longest} tokens that {self.label} reads; shorten it")
        if not captions.lengths.all():
            text = split.texts[int(np.argmin(captions.lengths))]
            raise UsageError(f"{text[:60]!r} has no word; give a sentence")
        return captions

    def _captions(self, split: Split, graphs: Path | None = None) -> TokenTexts | PhraseTexts:
        settings = self.saved.settings
        phrases = None
        if graphs is not None:
            phrases = CaptionPhrases.read(graphs, settings.max_words)
        return read_captions(split, self.saved.tokens, settings, phrases)

    def _images(
        self, images: Any, batch_size: int, refused: Callable[[int, str], object] | None = None
    ) -> tuple[int, Iterator[ImageBatch]]:
        """Return how many images there are, and some of them at a time."""
        size = _positive(batch_size)
        if isinstance(images, str | os.PathLike) and str(images).endswith(_FEATURES):
            images = FeatureFile.open(Path(images).expanduser())
        if isinstance(images, FeatureFile):
            images = Stored(images, images.image_id.tolist())
        if isinstance(images, Stored):
            data = self._data(images.features, images.ids)
            return data.num_images, (data.images(rows) for rows in blocks(data.num_images, size))
        photographs: list[Any] = [images]
        is_stack = isinstance(images, np.ndarray) and images.ndim == 4
        if is_stack or (isinstance(images, Sequence) and not isinstance(images, str | bytes)):
            photographs = [*images]  # pyright: ignore[reportGeneralTypeIssues]
        count = len(photographs)
        reader = self.saved.images
        if reader is not None:
            batches = read_frames(reader.framed, photographs, size, refused)
            return count, (ImageBatch(torch.empty(len(frames), 0, 0), pixels=frames) for frames in batches)
        if not photographs:
            return count, iter(())
        files = read_photographs(self._extractors(), photographs, size, refused)
        return count, (self._data(file, file.image_id.tolist()).images(np.arange(len(file))) for file in files)

    def _data(self, features: FeatureFile, ids: list[str]) -> SplitData:
        """Return the images of a file as the model reads them."""
        width = self.saved.config["image_dim"]
        data = open_split(given_split([], ids), features, None, self.saved.settings)
        if data.image_dim != width:
            raise DataError(
                f"{features.path} holds vectors of width {data.image_dim} and {self.label} reads those of width "
                f"{width} by {self._features!r}; give the features that it was trained on"
            )
        return data


def best(scores: np.ndarray, top: int) -> np.ndarray:
    """Return the rows of the highest scores [n], at most `top`, best first; equal ones in their order.

    Raises:
        DataError: a score is NaN or infinite.
    """
    check_finite(scores[None])
    return np.argsort(-scores, kind="stable")[:top]


def _vectors(embeddings: Any) -> np.ndarray | None:
    """Return embeddings as float32; None for anything else, such as photographs and sentences."""
    if isinstance(embeddings, torch.Tensor):
        embeddings = embeddings.detach().float().cpu().numpy()
    if isinstance(embeddings, np.ndarray) and embeddings.dtype.kind == "f":
        return embeddings.astype(np.float32, copy=False)
    return None


def _positive(number: int, name: str = "batch_size") -> int:
    if number < 1:
        raise UsageError(f"{name} = {number} is not 1 or more; raise it")
    return number


@contextmanager
def _task(name: str, total: int, shown: bool, unit: str = "") -> Iterator[Callable[[int], object]]:
    if shown:
        with Reporter(SafeConsole(stderr=True)).task(name, total, unit or name.rpartition(" ")[2]) as task:
            yield task.advance
    else:
        yield lambda count: None


# Opening
def load(folder_or_model: str | os.PathLike[str], *, device: str = "auto", revision: str = "main") -> RetrievalModel:
    """Open a model that encodes, scores and searches images and texts.

    Args:
        folder_or_model: a folder that `itrpipe export` wrote; the artifact of a training, `data/DATASET/train/NAME`; or
            a folder of transformers with any joint model, such as CLIP or SigLIP, or with a vision encoder, which reads
            no texts. Or the id of one on the hub.
        device: `auto` takes CUDA where there is one; `cpu`, or `cuda`.
        revision: branch, tag or commit of a hub id.

    Returns:
        The model, in evaluation mode. Of weights nothing but tensors is read, and no code that comes with them is run.

    Raises:
        MissingInputError: there is no such folder or hub id, or it lacks a file.
        DataError: a file is damaged.
        UsageError: it is none of these models, or there is no CUDA device.

    Example:
        >>> model = itrpipe.load("exported")  # doctest: +SKIP
        >>> model.search("two dogs on a beach", ["a.jpg", "b.jpg"])  # doctest: +SKIP
        [Match(index=1, score=0.31), Match(index=0, score=0.12)]
    """
    place = resolve_device(device)
    name = os.fspath(folder_or_model)
    folder = fetch_folder(name, revision)
    if (folder / MANIFEST).is_file():
        folder = folder.absolute()
        manifest = open_artifact(folder)
        if manifest.stage != "train":
            raise UsageError(f"{folder} is an artifact of {manifest.stage} and holds no model; name one of train")
        about = {"run": manifest.label, **described_inputs(folder)}
        if "features" in about:
            about["features"]["of_anywhere"] = True  # what made them is on this machine
        return _model_of_training(load_model(folder), about, place)
    if not (folder / CONFIG).is_file():
        raise MissingInputError(
            f"{folder} has no {CONFIG}; name the folder of a model, such as one of `itrpipe export`"
        )
    with reading(folder / CONFIG, "a model", "export the model again, or fetch it again"):
        check_export(folder)
        config = read_json(folder / CONFIG)
        if not isinstance(config, dict) or not ("backbone" in config or ABOUT in config):
            return _of_transformers(folder, name, revision, place)
        saved = load_model(folder)
        about: Any = saved.config.get(ABOUT)
        is_described = isinstance(about, dict) and ("features" in about or saved.images is not None)
        if not is_described or not isinstance(about.get("run"), str):
            raise DataError(
                f"{folder / CONFIG} does not say what the model reads of images; name a folder of `itrpipe export`, "
                "or of a training with its manifest.json"
            )
        return _model_of_training(saved, about, place)


def _model_of_training(saved: SavedModel, about: Mapping[str, Any], device: str) -> RetrievalModel:
    """Return a model of `itrpipe train`.

    Args:
        saved: the model.
        about: its name as `run`, and `described_inputs`.
        device: `cpu` or `cuda`.
    """
    label = about["run"]
    if saved.images is not None:
        return RetrievalModel(saved, label, device)
    features = about["features"]
    name = features["extractor"]
    parts = recorded_passes(name, features["settings"])
    if not parts:
        raise DataError(f"the features {name!r} name no extractor; give the folder as it was exported")

    def extractors() -> dict[str, Extractor]:
        imported = [part.kind for part in parts.values() if part.imported]
        if imported:
            raise UsageError(
                f"{label} reads the features {name!r}, which were imported ({imported[0]}), so those of a photograph "
                "cannot be made alike; give features.h5 of `itrpipe extract --from PATH` instead of photographs"
            )
        if not features["of_anywhere"]:
            raise UsageError(
                f"{label} reads the features {name!r}, whose weights lay in a file of the machine that exported it; "
                "give features.h5 instead of photographs"
            )
        return open_extractors(parts, device)

    parser = ParseSettings.model_validate(about["parser"]) if saved.settings.reads_phrases else None
    return RetrievalModel(saved, label, device, name, extractors, parser)


def _of_transformers(folder: Path, name: str, revision: str, device: str) -> RetrievalModel:
    """Open a joint model as it was published, such as CLIP, with captions as they are, or a vision encoder.

    Raises:
        MissingInputError: a file is not there.
        DataError: a file is damaged, or weights are of another network.
        UsageError: the model encodes no images.
    """
    if not reads_side(read_config(folder / CONFIG), TEXT):
        vision, _ = open_encoder(name, revision, (VISION,))
        saved = SavedModel(VisionModel(vision).eval(), Vocabulary(()), {})
        return RetrievalModel(saved, name, device)
    settings = declaration.DualEncoder(
        vision=name,
        text=name,
        vision_revision=revision,
        text_revision=revision,
        clean_captions=False,
        max_words=LONGEST,
    )
    encoders = network.open_encoders(settings)
    text = encoders.text
    if text is None or not text.is_joint:
        raise UsageError(f"{name} encodes no images; name a joint model, such as CLIP, or a vision encoder")
    model = network.build(settings, _COLOURS, 0, encoders)
    config = {"backbone": "dual-encoder", "model": settings.model_dump(), "image_dim": _COLOURS}
    saved = SavedModel(model.eval(), PieceIds.of(text, settings), config)
    return RetrievalModel(saved, name, device)
