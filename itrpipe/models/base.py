"""The contract of a backbone, and the batches and encodings that pass through it.

A model (`Matcher`) turns an `ImageBatch` and a `TextBatch` into encodings, each side on its own, and scores
pairs of encodings in two ways that agree with each other: `score_matrix` gives every image with every caption
([B, T]), `score_pairs` gives image k with caption k only ([B], at the cost of B pairs). Higher means a
better match. Losses see nothing of a model but these scores.

There are two kinds. An `EmbeddingModel` makes one embedding per image and per caption; its score is their inner
product, which is what makes it minable through an index (the one exception in this package is VSE++ with
`measure = "order"`). A `CrossAttentionModel` (`itrpipe.models.scan.network`) keeps every region and every word and has
no embedding to mine.

A backbone is a folder: `declaration.py` declares its options, and `network.py` defines `build(settings, image_dim,
vocabulary_size)`, which gives one of these two or another `Matcher`. If the settings say `opens_encoders`, the network
also defines `open_encoders`, whose result `build` takes as its fourth argument.

Shapes: B images, T captions, R regions, W words, D embedding width, G width of a global image feature.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from itrpipe.errors import DataError
from itrpipe.features.embeddings import INNER_PRODUCT

Value = TypeVar("Value")
_CELLS = tuple(cell / 7 for cell in range(8))
"""Centres of the columns and rows that say where a region is."""


def change_tensors(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """Change a tensor, or every tensor of a dataclass and of dataclasses inside; all else stays as it is."""
    if isinstance(value, Tensor):
        return change(value)  # pyright: ignore[reportReturnType]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {field.name: change_tensors(getattr(value, field.name), change) for field in fields(value)}
    return replace(value, **changes)


def move_to(value: Any, device: torch.device | str) -> Any:
    """Move a tensor, `Tensors`, or a dictionary or tuple of these to a device; all else stays as it is."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Tensors):
        return value.to(device)
    if isinstance(value, dict):
        return {name: move_to(item, device) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(move_to(item, device) for item in value)
    return value


class Tensors:
    """Base of the dataclasses of tensors, such as batches and encodings: they move to a device, and rows are taken."""

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on `device`, with all that it holds, copied asynchronously where the memory is pinned."""
        copied = copy.copy(self)
        vars(copied).update(move_to(vars(self), device))
        return copied

    def __getitem__(self, rows: Any) -> Self:
        """Return the images or captions of the given rows: every tensor, indexed."""
        return change_tensors(self, lambda tensor: tensor[rows])


@dataclass(frozen=True)
class ImageBatch(Tensors):
    """Visual features of B images, or the images themselves.

    Attributes:
        regions: [B, R, D_in] region features, half or single precision; rows past `count` are zero. R is 0 where the
            model reads something else.
        count: [B] int64, number of real regions per image (1..R), or None where all R are real.
        global_: [B, G] one feature for the whole image, or None where the extractor has none.
        pixels: [B, 3, h, w] uint8, for models that train their own vision encoder, else None.
        boxes: [B, R, 4] x0, y0, x1, y1 of the regions in 0..1, or None where the extractor has none.
    """

    regions: Tensor
    count: Tensor | None = None
    global_: Tensor | None = None
    pixels: Tensor | None = None
    boxes: Tensor | None = None

    def mirrored(self, chosen: Tensor) -> Self:
        """Mirror the chosen images, bool [B]: their pixels, and the boxes of their regions."""
        pixels = self.pixels
        boxes = self.boxes
        if pixels is not None:
            is_chosen = chosen.to(pixels.device)[:, None, None, None]
            pixels = torch.where(is_chosen, pixels.flip(-1), pixels)
        if boxes is not None:
            x0, y0, x1, y1 = boxes.unbind(-1)
            mirrored = torch.stack([1 - x1, y0, 1 - x0, y1], dim=-1)
            is_real = boxes.any(dim=-1, keepdim=True)
            is_chosen = chosen.to(boxes.device)[:, None, None]
            boxes = torch.where(is_chosen & is_real, mirrored, boxes)
        return replace(self, pixels=pixels, boxes=boxes)


@dataclass(frozen=True)
class PhraseBatch(Tensors):
    """The phrases of T captions, P of each at most.

    Attributes:
        kinds: [T, P] int64; 0 object, 1 attribute, 2 relation, -1 padding.
        tokens: bool [T, P, W], which tokens of its caption belong to a phrase.
    """

    kinds: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class TextBatch(Tensors):
    """T captions as token ids.

    Attributes:
        tokens: [T, W] int64; 0 pad, 1 start, 2 end, 3 unknown, words from 4 on.
        lengths: [T] int64, tokens per caption (1..W), start and end included where the model reads them; in any order.
        phrases: of the captions, for models that read them.
        in_training: whether a training step reads them. A model that counts padding then counts the padding of this
            batch, as FNE's released code does, and else that up to a fixed length, whatever mode the model is in.
        vectors: [T, D] of the captions by the model's own text encoder, where it is frozen and has read them before.
        on_host: the lengths once more, where `to` has taken the batch to a device: what decides shapes is read here,
            and nothing waits for the device.
    """

    tokens: Tensor
    lengths: Tensor
    phrases: PhraseBatch | None = None
    in_training: bool = False
    vectors: Tensor | None = None
    on_host: Tensor | None = None

    @property
    def host_lengths(self) -> Tensor:
        """Return the lengths [T] on the host; waits for the device where the batch was made there."""
        if self.on_host is None:
            return self.lengths.cpu()
        return self.on_host

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on `device`, made asynchronously where the memory is pinned; the host keeps the lengths."""
        on_host = self.on_host
        if self.lengths.device.type == "cpu":
            on_host = self.lengths
        return replace(super().to(device), on_host=on_host)


@dataclass(frozen=True)
class ImageEncoding(Tensors):
    """Encoded images.

    Attributes:
        embedding: [B, D] one vector per image.
        regions: [B, R, D] encoded regions, or None where the model keeps none.
    """

    embedding: Tensor
    regions: Tensor | None = None


@dataclass(frozen=True)
class TextEncoding(Tensors):
    """Encoded captions.

    Attributes:
        embedding: [T, D] one vector per caption.
    """

    embedding: Tensor


@dataclass(frozen=True)
class RegionEncoding(Tensors):
    """Images as sets of vectors.

    Attributes:
        regions: [B, R, D] encoded regions; rows past `count` hold anything.
        count: [B] int64, number of real regions per image, or None where all R are real.
    """

    regions: Tensor
    count: Tensor | None = None


@dataclass(frozen=True)
class WordEncoding(Tensors):
    """Captions as sequences of vectors.

    Attributes:
        words: [T, W, D] encoded words, start and end token among them; rows past the length hold anything.
        lengths: [T] int64, words per caption (1..W), in any order.
    """

    words: Tensor
    lengths: Tensor


ImageT = TypeVar("ImageT", bound=Tensors)
TextT = TypeVar("TextT", bound=Tensors)


ENCODERS = {"encode_images": (0,), "encode_texts": (0,)}
"""`Matcher.by_rows` of a model with costly encodings."""
SCORERS = {"score_matrix": (0,), "score_pairs": (0, 1), "score_at": (2, 3)}
"""`Matcher.by_rows` of a model with costly scores."""


class Matcher(nn.Module, Generic[ImageT, TextT]):
    """Base of all models; `ImageT` and `TextT` are its encodings.

    Attributes:
        by_rows: methods whose result has row k for row k of the arguments at these places, and depends on no other row
            of them but through BatchNorm. Several processes that train a model share these rows. Costly scores of
            pairs belong here beside the encoders; all else, every process computes.
        frozen: names of encoders, or of other parts, that are not trained.
        pretrained_scale: scale and bias of the logits that a joint model was pretrained with; None where it was not.
            Training moves a scale of the method's, never this one.
    """

    by_rows: ClassVar[Mapping[str, tuple[int, ...]]] = ENCODERS
    frozen: frozenset[str] = frozenset()
    pretrained_scale: tuple[float, float] | None = None

    def encoders(self) -> dict[str, nn.Module]:
        """Return the networks of layers that can be frozen or adapted, by names of `BackboneSettings.encoders`."""
        return {}

    def freeze(self, name: str) -> None:
        """Leave an encoder, or a part, as it is from now on: it gets no gradient, and stays in evaluation mode."""
        self.frozen |= {name}
        self._part(name).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        """Put the model in training mode, or in evaluation mode; frozen parts stay in the latter."""
        super().train(mode)
        for name in self.frozen:
            self._part(name).eval()
        return self

    def _part(self, name: str) -> nn.Module:
        return self.encoders().get(name) or self.get_submodule(name)

    def encode_images(self, images: ImageBatch) -> ImageT:
        """Encode B images.

        Raises:
            DataError: the number of regions of an image is one this model cannot work with.
        """
        raise NotImplementedError

    def encode_texts(self, texts: TextBatch) -> TextT:
        """Encode T captions, whose lengths may come in any order."""
        raise NotImplementedError

    def score_matrix(self, images: ImageT, texts: TextT) -> Tensor:
        """Score [B, T] every image with every caption."""
        raise NotImplementedError

    def score_pairs(self, images: ImageT, texts: TextT) -> Tensor:
        """Score [B] image k with caption k; B and T are equal."""
        raise NotImplementedError

    def score_at(self, images: ImageT, texts: TextT, image_rows: Tensor, text_rows: Tensor) -> Tensor:
        """Score [N] pairs of any images and captions, by their rows [N]."""
        return self.score_pairs(images[image_rows], texts[text_rows])

    def undecayed(self) -> set[str]:
        """Return the names of the parameters that weight decay leaves alone: biases, scales of norms, all vectors.

        Source: open_clip, released code.
        """
        names = set()
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or parameter.ndim < 2:
                names.add(name)
        return names

    def auxiliary_loss(self, images: ImageT, texts: TextBatch) -> Tensor | None:
        """Return a training loss of the model's own: a mean over image k with caption k; None where it has none."""
        return None


AnyMatcher = Matcher[Any, Any]


class EmbeddingModel(Matcher[ImageEncoding, TextEncoding]):
    """Base of the models that encode images and captions apart and compare two vectors.

    Scores are computed in single precision at least, also where autocast lets the encoders compute in another one.

    Attributes:
        measure: how two embeddings are compared, as embeddings files record it.
    """

    measure = INNER_PRODUCT

    def score_matrix(self, images: ImageEncoding, texts: TextEncoding) -> Tensor:
        """Score [B, T] every image with every caption."""
        return inner_products(images.embedding, texts.embedding)

    def score_pairs(self, images: ImageEncoding, texts: TextEncoding) -> Tensor:
        """Score [B] image k with caption k; B and T are equal."""
        assert images.embedding.shape == texts.embedding.shape
        products = at_least_single(images.embedding) * at_least_single(texts.embedding)
        return products.sum(dim=-1)


def tiled_scores(
    images: Sequence[Any],
    captions: Iterable[tuple[Tensor, Any]],
    score: Callable[[Any, Any], Tensor],
    recompute: bool = False,
) -> Tensor:
    """Score [B, T] every image with every caption, tile by tile.

    Args:
        images: blocks of images, in order.
        captions: groups of captions with their rows, such as captions of like lengths.
        score: scores [b, t] of a block with a group.
        recompute: with gradients, keep the inputs of a tile alone, and compute it again in the backward pass.
    """
    if recompute and torch.is_grad_enabled():
        score = partial(checkpoint, score, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore
    columns = []
    order = []
    for rows, group in captions:
        tiles = [score(block, group) for block in images]
        columns.append(torch.cat(tiles))  # [B, t]
        order.append(rows)
    scores = torch.cat(columns, dim=1)
    return scores.index_select(1, torch.cat(order).argsort())


def inner_products(images: Tensor, texts: Tensor) -> Tensor:
    """Multiply vectors [B, D] and [T, D] to scores [B, T], in single precision at least, whatever autocast says."""
    with torch.autocast(images.device.type, enabled=False):
        return at_least_single(images) @ at_least_single(texts).T


def l2_normalise(features: Tensor, dim: int) -> Tensor:
    """Divide by the l2-norm along `dim`, without an epsilon, so that nonzero input is scaled exactly.

    A slice that is all zero stays zero and passes its gradient on unscaled: dividing it by its norm would
    turn it, and every parameter behind it, into NaN; an epsilon would multiply its gradient by 1/epsilon.
    """
    # PyTorch's own norm is a hundred times slower on CPUs along any axis but the last. A root has no gradient at zero.
    squares = features.square().sum(dim, keepdim=True)
    return features / squares.masked_fill(squares == 0, 1.0).sqrt()


def unit_vectors(features: Tensor) -> Tensor:
    """Compute x / (|x| + 1e-8) along the last axis, in at least single precision; a zero vector stays zero.

    The gradient at zero is passed on unscaled, as in `l2_normalise`.
    """
    features = at_least_single(features)
    norm = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return features / (norm.masked_fill(norm == 0, 1.0) + 1e-8)


def boxes_of(images: ImageBatch) -> Tensor:
    """Return the boxes [B, R, 4] of regions in single precision.

    Raises:
        DataError: the features have none.
    """
    if images.boxes is None:
        raise DataError(
            "this model reads the boxes of regions, which these features have not; give others by --features, or where "
            "the regions are the cells of a grid extract them again with --set grid=[ROWS,COLUMNS]"
        )
    return images.boxes.float()


def region_width(image_dim: int, boxes: bool) -> int:
    """Return the width of the regions of `placed_regions`, of features [B, R, D_in]."""
    if boxes:
        return image_dim + 2 * len(_CELLS) + 2
    return image_dim


def placed_regions(images: ImageBatch, boxes: bool) -> Tensor:
    """Return features of regions [B, R, D_in], with `boxes` followed by their places.

    A place is how near the centre is to each of eight columns and eight rows, and width and height; it is made as long
    as the feature, so that neither drowns the other.

    Raises:
        DataError: the features have no boxes.
    """
    if not boxes:
        return images.regions
    low, high = boxes_of(images).split(2, dim=-1)
    cells = torch.tensor(_CELLS, device=low.device)
    distances = (low + high)[..., None] / 2 - cells  # [B, R, 2, 8]
    spread = 1 / 7
    nearness = (-(distances / spread).square()).exp().flatten(2)
    regions = images.regions.float()
    places = torch.cat([nearness, high - low], dim=-1)
    lengths = regions.norm(dim=-1, keepdim=True)
    places = places * lengths / places.norm(dim=-1, keepdim=True)
    return torch.cat([regions, places], dim=-1)


def real_count(images: ImageBatch) -> Tensor | None:
    """Return the number of real regions of each image [B], 1 to R, or None where all R are real."""
    count = images.count
    if count is None or bool((count == images.regions.shape[1]).all()):
        return None
    return count


def at_least_single(tensor: Tensor) -> Tensor:
    """Return a tensor in single precision, or in double if it is in double; one without fractions stays as it is."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def first_places(vectors: Tensor, counts: Tensor | None) -> Tensor:
    """Return bool [N, n], true at the first so many [N] of vectors [N, n, ...], which are real; None stands for all."""
    if counts is None:
        return torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
    places = torch.arange(vectors.shape[1], device=vectors.device)
    return places < counts[:, None]


def mean_of_first(vectors: Tensor, counts: Tensor | None) -> Tensor:
    """Average [N, D] the first so many [N] of vectors [N, n, D], or all of them; the others are padding."""
    if counts is None:
        return vectors.mean(dim=1)
    padding = ~first_places(vectors, counts)
    total = vectors.masked_fill(padding[..., None], 0.0).sum(dim=1)
    return total / counts[:, None]
