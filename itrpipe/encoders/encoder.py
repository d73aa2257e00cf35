"""A pretrained encoder of images, of captions, or of both, kept as the folder that it came in.

`open_encoder` opens a folder or a hub id, and `Encoder.save` writes such a folder again. Any network is taken that
transformers opens by `AutoModel`: a joint model by its own `get_image_features` and `get_text_features`, others by the
vectors that `itrpipe.encoders.images` and `itrpipe.encoders.texts` read out of their outputs.

Shapes: B images, h and w height and width of a frame, T captions, W tokens of a caption, D width of a vector.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from itrpipe.encoders import images, texts
from itrpipe.encoders.folders import CONFIG, SAFETENSORS, find_folder, quiet
from itrpipe.encoders.images import ImageOutputs, ImageReader
from itrpipe.encoders.texts import TextReader, never_wait, positions_of, read_modules, write_modules
from itrpipe.errors import DataError, MissingInputError, UsageError, reason_of
from itrpipe.storage.disk import reading, require_space

VISION, TEXT = "vision", "text"
_AGAIN = "download the model again"
# Parameters that pretraining alone uses; checkpoints may lack them.
_UNUSED = ("mask_token", "num_batches_tracked")
_IMAGES_AT_ONCE = {"cpu": 4, "cuda": 64}
"""Images in a forward pass outside training: on a processor more than fit its memory allocator's own 32 MiB take twice
as long each, and on a GPU a block of 512 images of 384 pixels would take gigabytes for a ViT's tokens."""
_SCALE, _TEMPERATURE, _BIAS = "logit_scale", "temperature", "logit_bias"
"""Names that joint models give the logarithm of the scale of their logits, its inverse, and what is added."""


class Encoder(nn.Module):
    """A network of transformers, and how images, captions or both go into it.

    Args:
        network: of transformers.
        image_reader: of images; None where the network is not asked about them.
        text_reader: of captions; None where the network is not asked about them.
        image_pool: `own`, the vector that the network makes itself; `mean` of all tokens; `cls`, the first; or `auto`,
            its own where it has one that was trained, else the mean.

    Raises:
        UsageError: the network has no vector of its own, and `own` was asked for.

    Attributes:
        network: as given.
        is_joint: whether it makes vectors of images and of captions that can be compared.
        images, texts: the readers; None where the network is not asked about such.
        image_width, text_width: D of each side; 0 where there is none.
        image_pool: the pooling that is used.
    """

    def __init__(
        self,
        network: Any,
        image_reader: ImageReader | None,
        text_reader: TextReader | None,
        image_pool: images.Pool = "auto",
    ) -> None:
        super().__init__()
        self.network = network
        self.is_joint = is_joint(network)
        self.images: Any = image_reader
        self.texts: Any = text_reader
        self.image_pool = image_pool
        self.image_width = 0
        self.text_width = 0
        self._parts: dict[str, list[str]] = {}
        training = network.training
        self.eval()
        if image_reader is not None:
            frames = torch.zeros(1, 3, *image_reader.frame, dtype=torch.uint8)
            self.image_width = self._try(VISION, self.encode_images, frames)
        if text_reader is not None:
            never_wait(network)
            tokens = torch.full((1, 3), text_reader.padding)
            self.text_width = self._try(TEXT, self.encode_texts, tokens, torch.tensor([3]))
        self.train(training)

    def parts(self, side: str) -> dict[str, nn.Module]:
        """Return what a side uses: the network, or parts of it by their names, and the layers behind the pooling."""
        parts = {"network": self.network}
        if self.is_joint:
            parts = {name: self.network.get_submodule(name) for name in self._parts[side]}
        if side == TEXT:
            parts["layers"] = self.texts.layers
        return parts

    def encode_images(self, frames: Tensor) -> Tensor:
        """Return vectors [B, D] of frames [B, 3, h, w]; outside training a few at a time."""
        vectors = [self.pooled(self.image_outputs(block)) for block in self.blocks(frames)]
        return torch.cat(vectors)

    def blocks(self, frames: Tensor) -> tuple[Tensor, ...]:
        """Split frames [B, 3, h, w] into blocks for a forward pass each; in training all are one block."""
        size = len(frames)
        if not self.training:
            size = _IMAGES_AT_ONCE.get(frames.device.type, size)
        return frames.split(size)

    def pooled(self, outputs: ImageOutputs) -> Tensor:
        """Return one vector for each image, [B, D], of the outputs of the network.

        Raises:
            UsageError: it has none of its own, and these are asked for.
        """
        if self.image_pool == "auto":  # of the first image, which decides
            self.image_pool = "mean" if outputs.own is None else "own"
        if self.image_pool == "own":
            if outputs.own is None:
                raise UsageError(f"{type(self.network).__name__} has no image vector of its own; give image_pool=mean")
            return outputs.own
        if self.image_pool == "cls":
            return outputs.tokens[:, 0]
        return outputs.tokens.mean(dim=1)

    def image_outputs(self, frames: Tensor) -> ImageOutputs:
        """Return the outputs of the network for frames [B, 3, h, w]."""
        pixels = self.images.normalised(frames)
        if self.is_joint:
            outputs = self.network.get_image_features(pixel_values=pixels)
        else:
            outputs = self.network(pixel_values=pixels)
        config = self.network.config
        config = getattr(config, "vision_config", config)
        patch = getattr(config, "patch_size", 1)
        if not isinstance(patch, int):
            patch = min(patch)
        return self.images.read_outputs(outputs, patch)

    def encode_texts(self, tokens: Tensor, lengths: Tensor, in_training: bool = False) -> Tensor:
        """Return vectors [T, D] of captions [T, W] int64 with lengths [T]; what is behind a length plays no part."""
        return self.texts(self.read(tokens, lengths, in_training), lengths)

    def read(self, tokens: Tensor, lengths: Tensor, in_training: bool = False) -> Any:
        """Return the output of the network for captions, see `encode_texts`."""
        inputs = self.texts.inputs(tokens, lengths, in_training)
        if self.is_joint:
            return self.network.get_text_features(**inputs)
        return self.network(**inputs)

    @torch.no_grad()
    def scale(self) -> tuple[float, float] | None:
        """Return scale and bias of the logits that a joint model was trained with; None where it names none."""
        network = self.network
        bias = float(getattr(network, _BIAS, 0.0))
        if hasattr(network, _SCALE):
            return float(getattr(network, _SCALE).exp()), bias
        if hasattr(network, _TEMPERATURE):
            return 1 / float(getattr(network, _TEMPERATURE)), bias
        return None

    @torch.no_grad()
    def set_scale(self, scale: float, bias: float) -> None:
        """Set scale and bias of the logits, where the network has a place for them."""
        values = {_SCALE: math.log(scale), _TEMPERATURE: 1 / scale, _BIAS: bias}
        for name, value in values.items():
            if hasattr(self.network, name):
                getattr(self.network, name).fill_(value)

    def checkpoint_gradients(self) -> None:
        """Compute activations anew in the backward pass, from now on.

        Raises:
            UsageError: the network cannot.
        """
        if not self.network.supports_gradient_checkpointing:
            raise UsageError(f"{type(self.network).__name__} has no gradient checkpointing; leave it out")
        self.network.config.use_cache = False  # else transformers says on the terminal that it turns it off
        # Releases of transformers 5 before the newest know the old name alone, which the newest warns of.
        enable = getattr(self.network, "activation_checkpointing_enable", self.network.gradient_checkpointing_enable)
        enable({"use_reentrant": False})

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let torch compile the network: of images for each size of a batch, since images are all of one shape."""
        for side in self._parts:
            dynamic = False if side == VISION else None
            for part in self.parts(side).values():
                part.compile(*args, dynamic=dynamic, **kwargs)

    def save(self, folder: Path) -> None:
        """Write the folder of the model, as it was opened, with the weights of now.

        Raises:
            DiskFullError: no space is left.
        """
        folder.mkdir(parents=True, exist_ok=True)
        size = sum(weights.nbytes for weights in self.network.state_dict().values())
        require_space(folder, size, "the weights")
        tokenizer = None if self.texts is None else self.texts.tokenizer
        with quiet():
            self.network.save_pretrained(folder)
            if self.images is not None:
                self.images.processor.save_pretrained(folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
        for weights in folder.glob("*.safetensors"):  # which safetensors makes for their owner alone
            shutil.copymode(folder / CONFIG, weights)
        if self.texts is not None and tokenizer is not None and not self.is_joint:
            write_modules(folder, self.texts, self.network.config.get_text_config().hidden_size)

    @torch.no_grad()
    def _try(self, side: str, encode: Callable[..., Tensor], *inputs: Tensor) -> int:
        """Encode one image or caption; remember which parts of the network are used, and return D."""
        used: list[str] = []
        handles = []
        for name, part in self.network.named_children():
            handles.append(part.register_forward_hook(lambda *_, name=name: used.append(name)))
        try:
            width = encode(*inputs).shape[1]
        finally:
            for handle in handles:
                handle.remove()
        self._parts[side] = list(dict.fromkeys(used))
        return width


def open_encoder(
    model: str,
    revision: str = "main",
    sides: tuple[str, ...] = (VISION, TEXT),
    image_pool: images.Pool = "auto",
    text_pool: texts.Pool = "auto",
) -> tuple[Encoder, tuple[str, ...]]:
    """Open a pretrained encoder; return it, and notes for the user.

    Args:
        model: folder or hub id.
        revision: branch, tag or commit of the hub id.
        sides: what it has to encode: `vision`, `text`, or both.
        image_pool, text_pool: of the tokens; `auto` is the pooling that the model was trained with, see `Encoder` and
            `itrpipe.encoders.texts.read_modules`, else the mean.

    Raises:
        MissingInputError: there is no such model, it lacks a file or a library, or the hub cannot be reached.
        DataError: a file is damaged, or weights are a pickle, of another network, or not finite.
        UsageError: transformers has no `AutoModel` of its type, or how it is pooled is not known.
    """
    folder, notes = find_folder(model, revision, sides)
    network = open_network(folder)
    image_reader = text_reader = None
    if VISION in sides:
        image_reader = open_images(folder)
    if TEXT in sides:
        tokenizer = load_tokenizer(folder)
        refuse_other_tokens(folder, tokenizer, network)
        pool, layers, limit = read_modules(folder)
        if pool is None:
            pool = "own" if is_joint(network) else "mean"
        if text_pool not in ("auto", pool):
            pool = text_pool
            layers = []
        text_reader = TextReader(tokenizer, pool, min(limit, positions_of(network)), layers)
    with reading(folder, "an encoder", "the network and what prepares its inputs do not belong together"):
        return Encoder(network, image_reader, text_reader, image_pool), notes


def open_config(folder: Path, kind: str = "AutoModel") -> Any:
    """Open the configuration of a network.

    Args:
        folder: of the model, here.
        kind: class of transformers that opens the network: an `Auto` class, or that of the network itself.

    Raises:
        DataError: the file is damaged.
        UsageError: the class knows no such network.
    """
    import transformers  # it is large, and most models have no such network

    config = _open_part("AutoConfig", folder, "a configuration")
    opener = getattr(transformers, kind)
    config_types = getattr(opener, "_model_mapping", None)
    if config_types is None:  # to ask for its truth value would import every network of transformers
        config_types = (opener.config_class,)
    if type(config) not in config_types:
        raise UsageError(f"{folder}: transformers has no {kind} of type '{config.model_type}'; choose another model")
    vars(config).pop("itrpipe", None)  # of `itrpipe export`, about a model that this one began with
    # A configuration can name an implementation that would be downloaded from the hub as code.
    config._attn_implementation = None
    config.return_dict = True
    return config


def open_network(folder: Path, kind: str = "AutoModel") -> Any:
    """Open a network with its weights, in float32, on the CPU, in evaluation mode.

    A pooler that the weights lack is left out, because it would be random.

    Args:
        folder, kind: see `open_config`.

    Raises:
        DataError: a file is damaged, or weights are of another network or not finite.
        UsageError: the class knows no such network.
    """
    import transformers  # see `open_config`

    weights = folder / SAFETENSORS[0]
    config = open_config(folder, kind)
    with quiet(), reading(weights, "weights", _AGAIN):
        network, report = getattr(transformers, kind).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are in the report
            output_loading_info=True,
        )
    wrong = []
    for name, shape, expected in sorted(report["mismatched_keys"]):
        wrong.append(f"'{name}' {list(shape)} is {list(expected)} by config.json")
    for name in sorted(report["missing_keys"]):
        parts = name.split(".")
        if parts[0] == "pooler":
            network.pooler = None
        elif parts[-1] not in _UNUSED:
            wrong.append(f"they lack '{name}'")
    if wrong:
        raise DataError(
            f"{folder}: {len(wrong)} of the weights do not fit {type(network).__name__}, such as: {wrong[0]}; they are "
            f"damaged or of another network, {_AGAIN}"
        )
    refuse_not_finite(weights, network, "download the weights again")
    return network.eval()


def open_images(folder: Path) -> ImageReader:
    """Open the image processor of a model.

    Raises:
        DataError: its file is damaged.
        UsageError: it makes frames of different sizes.
    """
    processor = _open_part("AutoImageProcessor", folder, "an image processor")
    with reading(folder, "an image processor", _AGAIN):
        return ImageReader(processor)


def refuse_other_tokens(folder: Path, tokenizer: Any, network: Any) -> None:
    """Refuse a tokenizer of another network.

    Raises:
        DataError: it has more tokens than the network embeds.
    """
    embedded = network.config.get_text_config().vocab_size
    if len(tokenizer) > embedded:
        raise DataError(
            f"{folder}: the tokenizer has {len(tokenizer):,} tokens and the network embeds {embedded:,}; they do not "
            f"belong together, {_AGAIN}"
        )


def is_joint(network: Any) -> bool:
    """Tell whether a network makes vectors of images and of captions that can be compared."""
    return hasattr(network, "get_image_features") and hasattr(network, "get_text_features")


def refuse_not_finite(where: Path, network: nn.Module, remedy: str) -> None:
    """Refuse weights that would make every score NaN, before anything is computed with them.

    Raises:
        DataError: a tensor holds NaN or infinity.
    """
    for name, tensor in network.state_dict().items():
        is_finite = tensor.isfinite()
        if not is_finite.all():
            bad = tensor.numel() - int(is_finite.sum())
            raise DataError(f"{where}: '{name}' holds {bad:,} values that are no finite numbers; {remedy}")


def load_tokenizer(folder: Path) -> Any:
    """Read the tokenizer in a folder.

    Raises:
        MissingInputError: a library that it needs is not installed.
        DataError: a file is damaged.
    """
    return _open_part("AutoTokenizer", folder, "a tokenizer")


def open_processor(folder: Path) -> Any:
    """Open the processor of a network that reads images and captions together.

    Raises:
        MissingInputError: a library that it needs is not installed.
        DataError: a file is damaged.
    """
    return _open_part("AutoProcessor", folder, "a processor of images and captions")


def _open_part(kind: str, folder: Path, what: str) -> Any:
    """Open a part of a model by an `Auto` class of transformers, from its files alone and without their code.

    Raises:
        MissingInputError: a library that it needs is not installed.
        DataError: a file is damaged.
    """
    import transformers  # see `open_config`

    opener = getattr(transformers, kind)
    with quiet(), reading(folder, what, _AGAIN):
        try:
            return opener.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except ImportError as error:
            raise MissingInputError(
                f"{folder}: {what} needs a library that is not installed ({reason_of(error)}); install it with pip"
            ) from None
