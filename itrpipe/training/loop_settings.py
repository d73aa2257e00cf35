"""What the training loop is told, and how much it has to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopSettings:
    """What the loop itself needs to know.

    Attributes:
        epochs, batch_size, learning_rate, decay_every, decay_factor, gradient_clip: as in the papers. Without an epoch
            the model stays as it is.
        batch_by: what `batch_size` counts, `pairs` or `tokens` (words and regions).
        accumulate: batches whose mean gradient makes one update.
        schedule: `step` decays by `decay_every`, `linear` warms up over `warmup_updates` and falls to 0 at the end;
            `linear-uniter` is one update ahead of it and ends at 1e-8; `plateau` decays where validation is flat.
        max_updates: training ends after so many, even inside an epoch; 0 leaves it to `epochs`.
        precision: `fp32` or `bf16` (autocast around the encoders).
        score_precision: of the scores of validation.
        validate_every: updates after each of which a validation comes, beside that at the end of an epoch; 0: none.
        encode_chunk: rows of an encoder at a time in training; 0 for all.
        selection: `rsum` (six recalls) or `r1+r5` (four), summed over both directions on the validation split.
        validation_images: validate on the first so many images.
        seed: of everything random.
        encode_block: rows per forward pass outside training.
        prefetch: batches made ahead.
        checkpoint_seconds: time between checkpoints inside an epoch.
        optimizer: name in `itrpipe.training.optimizers`.
        weight_decay, learning_rate_scaling, base_batch_size: as in the settings.
        decay_at: epochs after each of which schedule `step` decays; empty leaves it to `decay_every`.
        layer_decay, average: as in the settings.
        patience: flat validations in a row after which training ends, or with schedule `plateau` the rate falls; 0:
            none.
        first_epochs: epochs whose validations do not count for that; none where they are all.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    decay_every: int
    decay_factor: float
    gradient_clip: float
    batch_by: str
    accumulate: int
    schedule: str
    warmup_updates: int
    max_updates: int
    precision: str
    score_precision: str
    selection: str
    validation_images: int
    seed: int
    encode_block: int
    prefetch: int
    checkpoint_seconds: float
    optimizer: str = "adam"
    decay_at: tuple[int, ...] = ()
    validate_every: int = 0
    encode_chunk: int = 0
    compile: bool = False
    weight_decay: float = 0.01
    learning_rate_scaling: str = "none"
    base_batch_size: int = 256
    layer_decay: float = 1.0
    average: str = "none"
    patience: int = 0
    first_epochs: int = 0
