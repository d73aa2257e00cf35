"""Judge pairs by captions alone: a caption fits an image if it says what the image's own captions say.

Captions are compared by the cosine of their vectors. For an image i and a caption c:

    direct(i, c) = (largest + mean cosine of c to the captions of i) / 2
    siblings(i, c) = mean of direct(i, c') over all captions c' of the image that c belongs to, c among them
    score(i, c) = (direct(i, c) + siblings(i, c)) / 2

Shapes: P pairs, n captions, T captions in all, D width of a vector, k captions of an image.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F

from itrpipe.datasets.vocabulary import tokenize
from itrpipe.encoders.encoder import TEXT, Encoder, open_encoder
from itrpipe.engine.work import cut, resolve_device
from itrpipe.judging.declaration import TFIDF
from itrpipe.judging.material import Material
from itrpipe.judging.opened import OpenedJudge
from itrpipe.judging.terms import TermsJudge
from itrpipe.storage.arrays import Ragged

_BATCH = 128


def build(model: str, material: Material, device: str, revision: str) -> OpenedJudge:
    """Open the judge with a text encoder, or with `tfidf`; errors are those of `open_encoder`."""
    if model == TFIDF:
        words = pa.array([tokenize(caption) for caption in material.captions], pa.list_(pa.string()))
        captions = np.repeat(np.arange(len(words)), words.value_lengths().to_numpy())
        return TermsJudge(material, captions, words.flatten())
    vectors = material.encoded.get(TEXT)
    if vectors is None:
        vectors = encode_once(model, revision, tuple(material.captions), device)
    return CaptionsJudge(vectors, material)


@dataclass(eq=False)
class CaptionsJudge(OpenedJudge):
    """Compares captions with the captions of an image.

    Attributes:
        vectors: [T, D] unit vectors of the captions.
        material: the captions and the images that they belong to.
    """

    vectors: np.ndarray
    material: Material

    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return scores [P] float32 of rows [P] and [P].

        Raises:
            UsageError: an image has no captions.
        """
        material = self.material
        material.require_captions(images)
        scores = np.empty(len(images), np.float32)
        direct = np.empty(len(self.vectors), np.float32)  # of all captions with an image; those compared are set
        order = np.argsort(images, kind="stable")
        starts = np.flatnonzero(np.diff(images[order], prepend=-1))
        for pairs in np.split(order, starts)[1:]:  # of one image each
            # Pairs repeat other images, whose captions are compared with those of this one once.
            groups, group_of_pair = np.unique(material.groups[captions[pairs]], return_inverse=True)
            compared = material.captions_of.take(groups)
            image_captions = material.captions_of[int(images[pairs[0]])]
            cosines = self.vectors[compared.values] @ self.vectors[image_captions].T
            direct[compared.values] = (cosines.max(axis=1) + cosines.mean(axis=1)) / 2
            siblings = np.add.reduceat(direct[compared.values], compared.offsets[:-1]) / compared.counts
            scores[pairs] = (direct[captions[pairs]] + siblings[group_of_pair]) / 2
        return scores

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return scores [n] float32 of captions with the other captions of their own image; NaN where it has none."""
        scores = np.full(len(captions), np.nan, np.float32)
        for place, group in enumerate(self.material.groups[captions].tolist()):
            members = self.material.captions_of[group]
            others = len(members) - 1
            if not others:
                continue
            vectors = self.vectors[members]
            cosines = vectors @ vectors.T
            np.fill_diagonal(cosines, 0.0)
            mean = cosines.sum(axis=1) / others
            np.fill_diagonal(cosines, -np.inf)
            direct = (cosines.max(axis=1) + mean) / 2
            caption_direct = direct[members == captions[place]].item()
            scores[place] = (caption_direct + direct.mean()) / 2
        return scores


@functools.lru_cache(maxsize=2)
def encode_once(model: str, revision: str, captions: tuple[str, ...], device: str) -> np.ndarray:
    """Return unit vectors [T, D] float32 of captions, kept for the next evaluation of the same split in this process.

    Args:
        model: hub id or folder of a text encoder.
        revision: branch, tag or commit of the hub id.
        captions, device: see `encode_captions`.
    """
    encoder, _ = open_encoder(model, revision, (TEXT,))
    return encode_captions(encoder, captions, device)


@torch.inference_mode()
def encode_captions(encoder: Encoder, captions: Sequence[str], device: str) -> np.ndarray:
    """Return unit vectors [T, D] float32 of captions, which are cut where the encoder has no more positions.

    Args:
        encoder: with its side of captions.
        captions: T texts.
        device: `auto`, `cpu` or `cuda`.
    """
    device = resolve_device(device)
    encoder.to(device)
    reader = encoder.texts
    vectors = np.empty((len(captions), encoder.text_width), np.float32)
    order = np.argsort([len(caption) for caption in captions], kind="stable")  # equal lengths need no padding
    for part in cut(order, _BATCH):
        texts = [captions[row] for row in part.content]
        encoded = reader.tokenizer(texts, truncation=True, max_length=reader.max_tokens)
        ids = Ragged.of_lists(encoded["input_ids"])
        tokens = torch.from_numpy(ids.padded()).to(device)
        lengths = torch.from_numpy(ids.counts).to(device)
        batch = encoder.encode_texts(tokens, lengths)
        vectors[part.content] = F.normalize(batch, dim=1).cpu().numpy()
    return vectors
