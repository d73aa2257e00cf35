"""Embeddings of a split by a model of another library, which is not trained here.

Shapes: N images, T captions, D width.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from itrpipe.datasets.prepared import Split
from itrpipe.encoders.folders import quiet
from itrpipe.engine.work import Part, Work, cut, numbered, resolve_device
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import EMBEDS_NO, OPEN_CLIP, SENTENCE_TRANSFORMERS
from itrpipe.features.embeddings import INNER_PRODUCT, embedding_writer
from itrpipe.features.extraction import Decoders, ImageFiles, decode_image
from itrpipe.features.given import COSINE, checked_vectors
from itrpipe.storage.arrays import ArrayFile, write_arrays
from itrpipe.storage.disk import reading

IMAGES, TEXTS = "images", "texts"
_BATCH = 32
_BATCHES_PER_PART = 8
_VECTORS = "vectors"
_FIRST_SAFE = 6
"""Release of sentence-transformers from which on local folders are trusted no more than the hub."""
_AGAIN = "name another model, or download it again"


class SentenceTransformersEmbedder:
    """A `SentenceTransformer`; captions are embedded as queries and images as documents, with the prompts of these.

    Args:
        folder: of the model, here.
        device: `cpu` or `cuda`.

    Raises:
        MissingInputError: the library is a release that runs code out of local folders, whatever it is told.
        DataError: a file is damaged, or needs code that the folder brings.
        UsageError: it does not embed both images and captions.
    """

    def __init__(self, folder: Path, device: str) -> None:
        from sentence_transformers import SentenceTransformer, __version__
        from tqdm import tqdm

        if int(__version__.partition(".")[0]) < _FIRST_SAFE:
            raise MissingInputError(
                f"sentence-transformers {__version__} runs code that a local folder brings; run "
                f"`pip install 'sentence-transformers>={_FIRST_SAFE}'`"
            )
        tqdm.set_lock(threading.RLock())  # its own is a semaphore, which a worker that is ended would leave behind
        with quiet(), reading(folder, "an embedder", _AGAIN):
            self._model = SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        for kind in ("image", "text"):
            if not self._model.supports(kind):
                raise UsageError(EMBEDS_NO.format(folder, f"{kind}s"))

    def encode_images(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return vectors [N, D] float32 of images [H, W, 3] uint8 RGB."""
        pictures = [Image.fromarray(image) for image in images]
        vectors = self._model.encode_document(pictures, batch_size=_BATCH, show_progress_bar=False)
        return vectors.astype(np.float32)

    def encode_texts(self, captions: Sequence[str]) -> np.ndarray:
        """Return vectors [T, D] float32 of captions."""
        vectors = self._model.encode_query(list(captions), batch_size=_BATCH, show_progress_bar=False)
        return vectors.astype(np.float32)


class OpenClipEmbedder:
    """A model of open_clip, by the folder that its `save_pretrained` or the hub has.

    Args:
        folder: of the model, here.
        device: `cpu` or `cuda`.

    Raises:
        DataError: a file is damaged.
    """

    def __init__(self, folder: Path, device: str) -> None:
        import open_clip

        name = f"local-dir:{folder}"
        with quiet(), reading(folder, "a model of open_clip", _AGAIN):
            opened: Any = open_clip.create_model_from_pretrained(name, device=device)
            self._model, self._processor = opened
            self._tokenizer = open_clip.get_tokenizer(name)
        self._model.eval()
        self._device = device

    @torch.inference_mode()
    def encode_images(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return vectors [N, D] float32 of images [H, W, 3] uint8 RGB."""
        frames = [self._processor(Image.fromarray(image)) for image in images]
        vectors = self._model.encode_image(torch.stack(frames).to(self._device))
        return vectors.float().cpu().numpy()

    @torch.inference_mode()
    def encode_texts(self, captions: Sequence[str]) -> np.ndarray:
        """Return vectors [T, D] float32 of captions."""
        tokens = self._tokenizer(list(captions)).to(self._device)
        return self._model.encode_text(tokens).float().cpu().numpy()


Embedder = SentenceTransformersEmbedder | OpenClipEmbedder
EMBEDDERS = {SENTENCE_TRANSFORMERS: SentenceTransformersEmbedder, OPEN_CLIP: OpenClipEmbedder}
"""Library -> embedders of it."""


@dataclass(eq=False)
class EmbedSplit(Work[tuple[Embedder, Decoders]]):
    """Embeddings of the images and captions of a split; a part's file holds `vectors` [n, D] of some of one side.

    Attributes:
        library: a key of `EMBEDDERS`.
        folder: of the model, here.
        images: of the split.
        captions: of the split.
        device: `auto`, `cpu` or `cuda`.
    """

    title = "embedding"
    unit = "rows"
    untold = ("images", "captions")

    library: str
    folder: Path
    images: ImageFiles
    captions: Sequence[str]
    device: str

    def parts(self) -> list[Part]:
        """Return some images at a time, then some captions at a time."""
        size = _BATCH * _BATCHES_PER_PART
        contents = []
        for part in cut(np.arange(len(self.images.files)), size):
            contents.append((part.rows, (IMAGES, self.images.of(part.content))))
        for part in cut(self.captions, size):
            contents.append((part.rows, (TEXTS, part.content)))
        return numbered(contents)

    def open(self) -> tuple[Embedder, Decoders]:
        """Open the model, and the threads that decode images for it."""
        embedder = EMBEDDERS[self.library](self.folder, resolve_device(self.device))
        return embedder, Decoders(self.cores)

    def make(self, worker: tuple[Embedder, Decoders], part: Part, path: Path) -> None:
        """Embed some images or some captions.

        Raises:
            DataError: an image cannot be used.
        """
        embedder, decoders = worker
        side, content = part.content
        vectors = []
        if side == TEXTS:
            for batch in cut(content, _BATCH):
                vectors.append(embedder.encode_texts(batch.content))
        else:
            decode = partial(decode_image, content, transform=np.asarray)
            batches = [batch.content for batch in cut(range(len(content.files)), _BATCH)]
            for _, images, refused in decoders.ahead(batches, decode, list):
                for row, reason in refused.items():
                    file = content.root / content.files[row]
                    raise DataError(f"{file}: {reason}; restore the file, or prepare again")
                vectors.append(embedder.encode_images(images))
        write_arrays(path, {_VECTORS: np.concatenate(vectors)})

    def join(self, paths: Sequence[Path], target: Path, split: Split, measure: str) -> dict[str, int]:
        """Write `embeddings.h5`; what an interrupted run has left there is replaced.

        Args:
            paths: of all parts.
            target: the file.
            split: of the dataset.
            measure: `cosine`, for which vectors are made unit vectors, or `inner-product`.

        Returns:
            `images`, `captions`, `width`; `made_unit`, vectors that were not.

        Raises:
            DataError: a vector is not finite, or is zero and has no cosine.
        """
        target.unlink(missing_ok=True)
        width = ArrayFile(paths[0])[_VECTORS].shape[1]
        written = {IMAGES: 0, TEXTS: 0}
        made_unit = 0
        with embedding_writer(
            target, split.name, split.image_ids, split.caption_ids, split.caption_image, width, INNER_PRODUCT
        ) as write:
            for part, path in zip(self.parts(), paths, strict=True):
                side, _ = part.content
                start = written[side]
                rows = ArrayFile(path)[_VECTORS].read()
                vectors, changed = checked_vectors(self.folder, rows, start, unit=measure == COSINE)
                write(side, start, vectors)
                written[side] += part.rows
                made_unit += changed
        return {"images": written[IMAGES], "captions": written[TEXTS], "width": width, "made_unit": made_unit}
