"""Settings of the methods, one class per method file: `aoq.py` is configured by `Aoq`.

Kept apart from the methods so that a configuration can be read and checked without importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from itrpipe.config import Settings, hyphenated

MOST, MOST_WRITTEN = 1_000_000, 10_000
"""Largest number of negatives, and of sentences written for a caption: far beyond what a step can hold."""


@dataclass(frozen=True)
class Mined:
    """Mined lists that a method draws negatives from.

    Attributes:
        texts, images: it draws among the first so many captions of an image and images of a caption.
        teacher: backbone whose round one is mined; None for the model's own.
        with_probabilities: whether it reads how likely each candidate is a false negative.
    """

    texts: int
    images: int
    teacher: str | None
    with_probabilities: bool


@dataclass(frozen=True)
class Masked:
    """How a method masks captions.

    Attributes:
        units: what is masked together: single `words`, or the `phrases` of the scene graph.
        compare: what is compared with the captions of the image, see `itrpipe.negatives.caption_masks`.
    """

    units: Literal["words", "phrases"]
    compare: Literal["piece", "word", "off"]


class MethodSettings(Settings):
    """Settings that every method has, and what a method asks for.

    Attributes:
        auxiliary_weight: weight of the backbone's own loss, such as VSRN's captioning loss.
        mask_same_image: do not count two captions of one image as each other's negatives.
        sum_epochs: train the first so many epochs with all negatives of the batch (AOQ Eq. 1) instead, which
            keeps the hardest-negative loss off its plateau at twice the margin; VSE-infinity does so for one epoch.
        needs_embeddings: whether it compares embeddings by inner product, which not every backbone has.
        only_backbone: the one backbone that it trains; empty where it trains others too.
        unread: those of these options that it does not read and refuses.
        heads: of the model, which start from others where the run that this one starts from has not trained them.
        answers: what can be asked of a model that it trained: `words` (which are wrong), `false-negatives`.
    """

    needs_embeddings: ClassVar[bool] = False
    only_backbone: ClassVar[str] = ""
    unread: ClassVar[tuple[str, ...]] = ()
    heads: ClassVar[frozenset[str]] = frozenset()
    answers: ClassVar[frozenset[str]] = frozenset()

    auxiliary_weight: float = Field(default=1.0, ge=0)
    mask_same_image: bool = False
    sum_epochs: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _reads_what_is_given(self) -> MethodSettings:
        for name in self.unread_options():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} = {getattr(self, name)} is an option that this method does not read")
        return self

    def unread_options(self) -> tuple[str, ...]:
        """Names of the options that are not read with the others as they are."""
        return self.unread

    def check_epochs(self, epochs: int) -> None:
        """Refuses so few epochs that its negatives are never used.

        Raises:
            ValueError: they are so few.
        """

    def mined(self) -> Mined | None:
        """The mined lists that it reads."""
        return None

    def masked(self) -> Masked | None:
        """How it masks captions, where it does."""
        return None

    def reads_sentences(self) -> bool:
        """Whether it reads sentences of `itrpipe synthesize`."""
        return False

    def written_by(self) -> str:
        """Configuration of `train` whose model, frozen, writes sentences for it; empty without one."""
        return ""

    def joins_captions(self) -> bool:
        """Whether it makes captions of others, for which it has to know where their words begin and end."""
        return False

    def longest_made(self) -> int:
        """Longest caption in tokens that it makes; 0 where it keeps to what the model reads."""
        return 0


class Triplet(MethodSettings):
    """Online triplet loss. Source: VSE++ (Faghri et al., BMVC 2018); AOQ Eq. 1 and 2.

    Attributes:
        margin: gamma.
        max_violation: hardest negative of the batch only (Eq. 2), else all of them (Eq. 1).
        synthetic_sentences: sentences of `itrpipe synthesize` drawn for each caption, as further negatives of its
            image; 0: none.
        synthetic_weight: of the loss with the hardest of these.
        generated_positives: a second caption of every pair is made of the image's own: `joined` with another of them
            (AsCL's Asymmetry-II), `shortened` (Asymmetry-III), or for each one of both (`either`); the loss is then
            half that of the captions and half that of these (AsCL Eq. 7). `none` makes none.
    """

    margin: float = Field(default=0.2, ge=0)
    max_violation: bool = True
    synthetic_sentences: int = Field(default=0, ge=0, le=MOST)
    synthetic_weight: float = Field(default=1.0, ge=0)
    generated_positives: Literal["none", "joined", "shortened", "either"] = "none"

    def reads_sentences(self) -> bool:
        """Where some are drawn."""
        return self.synthetic_sentences > 0

    def joins_captions(self) -> bool:
        """For generated positives."""
        return self.generated_positives != "none"


class Aoq(MethodSettings):
    """Adaptive offline quintuplet loss. Source: AOQ (Chen et al., ECCV 2020), Eq. 3 to 5.

    Attributes:
        variant: `adaptive-quintuplet` (Eq. 5), `quintuplet` (Eq. 4) or `offline-triplet` (Eq. 3).
        online_term: count the in-batch negatives too; not with Eq. 5, which weighs them.
        quintuplet_pairs: make the last two pairs of Eq. 4 of `offline` or of `online` negatives.
        weight_by: whose score the weights of Eq. 5 compare in-batch negatives with, `offline` or `positive`.
        margin_online: gamma_1.
        margin_offline: gamma_2.
        alpha, beta: slope and offset of the adaptive weights.
        top_texts, top_images: negatives are drawn among the first so many of the mined lists.
        coupled: tie the image's rank to the text's, as the released code does.
        redraw: draw again while the drawn text describes the drawn image, as the paper says.
        teacher: backbone whose round one is mined; None for the model's own.
        false_negatives: candidates that mining took for false negatives (`--guard fne`) are drawn like others (`keep`),
            with weight 1 - P (`weigh`), or not at all where P is above `drop_above` (`drop`).
        drop_above: probability of `drop`.
    """

    variant: Literal["adaptive-quintuplet", "quintuplet", "offline-triplet"] = "adaptive-quintuplet"
    online_term: bool = True
    quintuplet_pairs: Literal["offline", "online"] = "offline"
    weight_by: Literal["offline", "positive"] = "offline"
    margin_online: float = Field(default=0.2, ge=0)
    margin_offline: float = Field(default=0.0, ge=0)
    alpha: float = Field(default=0.3, gt=0)
    beta: float = 1.5
    top_texts: int = Field(default=300, ge=1, le=MOST)
    top_images: int = Field(default=60, ge=1, le=MOST)
    coupled: bool = False
    redraw: bool = True
    teacher: str | None = None
    false_negatives: Literal["keep", "weigh", "drop"] = "keep"
    drop_above: float = Field(default=0.5, ge=0, le=1)

    def check_epochs(self, epochs: int) -> None:
        """Refuses a training without a single offline negative."""
        if epochs <= self.sum_epochs:
            raise ValueError(
                f"epochs = {epochs} all fall within loss.sum_epochs = {self.sum_epochs}, so the offline "
                "negatives would never be used; raise epochs, or set that to 0 under the name of this configuration, "
                "as in --set aoq.loss.sum_epochs=0"
            )

    def mined(self) -> Mined:
        """The teacher's."""
        return Mined(self.top_texts, self.top_images, self.teacher, self.false_negatives != "keep")

    @model_validator(mode="after")
    def _coupled_ranks_fit(self) -> Aoq:
        if self.coupled and self.top_images > self.top_texts:
            raise ValueError("coupled ranks need top_images <= top_texts")
        if self.coupled and self.false_negatives == "weigh":
            raise ValueError("coupled ranks are drawn alike; give --set loss.false_negatives=drop or coupled=false")
        return self

    @model_validator(mode="after")
    def _options_are_read(self) -> Aoq:
        for option, usual, variants in (
            ("online_term", True, ("offline-triplet", "quintuplet")),
            ("quintuplet_pairs", "offline", ("quintuplet",)),
            ("weight_by", "offline", ("adaptive-quintuplet",)),
        ):
            value = getattr(self, option)
            if value != usual and self.variant not in variants:
                raise ValueError(f"{option} = {value} is an option of variant {' and '.join(variants)} only")
        return self


class Ssamt(MethodSettings):
    """Multi-grained supervision with phrase labels. Source: SSAMT (Fan et al., 2021).

    Attributes:
        phase: `intra` trains each side alone with L0; `inter` trains pairs with L1 to L3 on top of that, frozen.
        margin_intra, margin_global, margin_local, margin_phrase: alpha_0 to alpha_3.
        weight_global, weight_local, weight_phrase: lambda_1 to lambda_3.
        negatives: which negative of the batch, by the scores of phase `intra`: the `hardest`, one drawn by `softmax`
            of the scores, or one of the `top-k` at random.
        temperature: of `softmax`.
        top_k: of `top-k`.
        label_stopwords: whether words outside every phrase take part in the phrase loss.
    """

    only_backbone: ClassVar[str] = "ssamt"
    unread: ClassVar[tuple[str, ...]] = ("auxiliary_weight",)

    mask_same_image: bool = True
    phase: Literal["intra", "inter"] = "inter"
    margin_intra: float = Field(default=0.05, ge=0)
    margin_global: float = Field(default=0.05, ge=0)
    margin_local: float = Field(default=0.05, ge=0)
    margin_phrase: float = Field(default=0.1, ge=0)
    weight_global: float = Field(default=1.0, ge=0)
    weight_local: float = Field(default=0.1, ge=0)
    weight_phrase: float = Field(default=0.1, ge=0)
    negatives: Literal["hardest", "softmax", "top-k"] = "hardest"
    temperature: float = Field(default=0.05, gt=0)
    top_k: int = Field(default=10, ge=1, le=MOST)
    label_stopwords: Literal["keep", "drop"] = "keep"

    def unread_options(self) -> tuple[str, ...]:
        """Also those of the other phase."""
        if self.phase == "inter":
            return (*self.unread, "sum_epochs", "margin_intra")
        of_inter = (name for name in Ssamt.model_fields if name.startswith(("margin_", "weight_")))
        others = ("negatives", "temperature", "top_k", "label_stopwords")
        return (*self.unread, *(name for name in of_inter if name != "margin_intra"), *others)


class Fne(MethodSettings):
    """False-negative elimination over a momentum memory. Source: FNE (Li et al., ACM MM 2023); its released code.

    Attributes:
        margin: of the triplet loss.
        candidates: one negative for each anchor, `drawn` by its probability to be false, or the `hardest`, which is the
            paper's "w/o FNE".
        momentum_twin: candidates are encoded by a slowly following copy of the model; off, by the model itself, which
            is the paper's "w/o MMM" and has no memory.
        momentum: m of the copy.
        momentum_eval: the copy runs in evaluation mode; in the released code dropout is active.
        memory_size: pairs of earlier batches that are candidates too.
        mask_unfilled: the memory starts empty; in the released code it starts with random vectors that count.
        prior: p, share of matches among all pairs.
        alpha: of the weights of candidates that are no likely match.
        posterior_threshold: lambda, probability above which a candidate is a likely match.
        posterior_scale: factor of the probability in the weight of a likely match.
        window: draw only candidates above the mean similarity of matches less the margin (released code).
        fallback: the hardest candidate where the window leaves none (released code).
        min_count: matches that an epoch must have seen before probabilities are used.
        negative_source: mismatches of the statistics are the `hardest` of the batch or `all`.
        ties: of pairs with equal scores `none` counts as a match, or the `first` (released code).
        reset_each_epoch: start the statistics anew in every epoch (released code).
        monotone: let the probability not fall again for the most similar candidates.
        warm_epochs: first epochs with the hardest negatives of the batch alone (released code).
    """

    needs_embeddings: ClassVar[bool] = True
    answers: ClassVar[frozenset[str]] = frozenset({"false-negatives"})

    margin: float = Field(default=0.2, ge=0)
    candidates: Literal["drawn", "hardest"] = "drawn"
    momentum_twin: bool = True
    momentum: float = Field(default=0.995, ge=0, lt=1)
    momentum_eval: bool = True
    memory_size: int = Field(default=8192, ge=0, le=100_000_000)
    mask_unfilled: bool = True
    prior: float = Field(default=1e-4, gt=0, lt=1)
    alpha: float = Field(default=0.5, ge=0)
    posterior_threshold: float = Field(default=0.001, ge=0, le=1)
    posterior_scale: float = Field(default=0.5, ge=0)
    window: bool = True
    fallback: bool = True
    min_count: int = Field(default=200, ge=0)
    negative_source: Literal["hardest", "all"] = "hardest"
    ties: Literal["none", "first"] = "none"
    reset_each_epoch: bool = True
    monotone: bool = False
    warm_epochs: int = Field(default=1, ge=0)

    @property
    def online_epochs(self) -> int:
        """First epochs that know the negatives of the batch only."""
        return max(self.warm_epochs, self.sum_epochs)

    def check_epochs(self, epochs: int) -> None:
        """Refuses a training in which nothing is drawn."""
        if epochs <= self.online_epochs:
            raise ValueError(
                f"epochs = {epochs} all fall within loss.warm_epochs = {self.warm_epochs} and "
                f"loss.sum_epochs = {self.sum_epochs}, so no negative would ever be drawn; raise epochs"
            )

    @model_validator(mode="after")
    def _memory_has_its_twin(self) -> Fne:
        if self.memory_size and not self.momentum_twin:
            raise ValueError(
                f"memory_size = {self.memory_size} needs momentum_twin = true; give --set loss.memory_size=0 as well"
            )
        return self


class Itm(MethodSettings):
    """Image-text matching with the hardest of sampled negatives. Source: UNITER (Chen et al., ECCV 2020), appendix.

    Attributes:
        margin: of the hinge between the sigmoids of two scores.
        sampled_negatives: images drawn for each caption, and captions for each image, that do not belong to it.
        hard_negatives: how many of them, those with the highest scores, it is trained with; in the first `sum_epochs`
            epochs the first drawn instead.
    """

    only_backbone: ClassVar[str] = "uniter"
    unread: ClassVar[tuple[str, ...]] = ("auxiliary_weight", "mask_same_image")

    margin: float = Field(default=0.2, ge=0)
    sampled_negatives: int = Field(default=399, ge=1, le=MOST)
    hard_negatives: int = Field(default=31, ge=1, le=MOST)

    @model_validator(mode="after")
    def _enough_are_sampled(self) -> Itm:
        if self.hard_negatives > self.sampled_negatives:
            raise ValueError(
                f"hard_negatives = {self.hard_negatives} are to be found among sampled_negatives = "
                f"{self.sampled_negatives}; raise those or lower these"
            )
        return self


class Pretrain(MethodSettings):
    """Masked words and matching, which UNITER is pretrained with. Source: UNITER (Chen et al., ECCV 2020), §3.2.

    Attributes:
        negatives: images drawn for each caption that are not its own.
        mask: what is masked together: single `words`, or the `phrases` of the scene graph.
        noise: put random words at 10 % of the masked positions and leave 10 % as they are.
        weight_words: of the loss of masked words.
        weight_matching: of the loss of matching.
    """

    only_backbone: ClassVar[str] = "uniter"
    unread: ClassVar[tuple[str, ...]] = ("auxiliary_weight", "mask_same_image", "sum_epochs")

    negatives: int = Field(default=1, ge=1, le=MOST)
    mask: Literal["words", "phrases"] = "words"
    noise: bool = True
    weight_words: float = Field(default=1.0, ge=0)
    weight_matching: float = Field(default=1.0, ge=0)

    def masked(self) -> Masked:
        """All captions."""
        return Masked(self.mask, "off")


class Tags(Itm):
    """Synthetic negative sentences beside hard negatives. Source: TAGS-DC (Fan et al., Findings of NAACL 2022).

    Attributes:
        generator: who writes the sentences: in every step the model itself (`dynamic`) or a frozen one (`static`,
            §3.2), or `itrpipe synthesize` before training (`bank`, ours). What is written in a step is ranked by the
            model in training; the sentences of the bank keep the order of the model that wrote them.
        writer: of `static`: configuration of `train` whose model writes.
        mask: what is masked together: `phrases` of the scene graph, or single `words`.
            This and what follows up to `compare` is about sentences that are written in the step.
        copies: K, masked copies of a caption.
        draws: L, refills of a copy.
        temperature: tau of the draws.
        noise: put random words at 10 % of the masked positions and leave 10 % as they are.
        exclude_specials: never draw start, end, padding, the unknown word or the mask.
        compare: what the filter against false negatives compares with the captions of the image: token ids (`piece`)
            or whole words without case (`word`); `off` leaves it out.
        keep: m, sentences that a caption is trained with, the hardest.
        weight_words: lambda_MLM.
        weight_sentences: lambda_ISTM.
    """

    generator: Literal["dynamic", "static", "bank"] = "dynamic"
    writer: str = ""
    mask: Literal["phrases", "words"] = "phrases"
    copies: int = Field(default=20, ge=1, le=MOST_WRITTEN)
    draws: int = Field(default=20, ge=1, le=MOST_WRITTEN)
    temperature: float = Field(default=1.5, gt=0)
    noise: bool = True
    exclude_specials: bool = True
    compare: Literal["piece", "word", "off"] = "piece"
    keep: int = Field(default=31, ge=1, le=MOST_WRITTEN)
    weight_words: float = Field(default=0.1, ge=0)
    weight_sentences: float = Field(default=1e-3, ge=0)

    def masked(self) -> Masked | None:
        """Where sentences are written in the step."""
        return None if self.reads_sentences() else Masked(self.mask, self.compare)

    def reads_sentences(self) -> bool:
        """Those of the bank."""
        return self.generator == "bank"

    def written_by(self) -> str:
        """The static generator."""
        return self.writer

    @model_validator(mode="after")
    def _someone_writes(self) -> Tags:
        if self.generator == "bank" and self.weight_words:
            raise ValueError(
                f"weight_words = {self.weight_words} trains the model on masked words, and generator = bank has none; "
                "give --set loss.weight_words=0"
            )
        if (self.generator == "static") != bool(self.writer):
            raise ValueError(
                f"generator = {self.generator} and writer = {self.writer!r} do not go together: a static generator is "
                "the model of a configuration of train, such as --set loss.writer=pretrain, and no other has one"
            )
        return self


class TagsDc(Tags):
    """The same with discrimination and correction of words. Source: TAGS-DC, section 2.4; its released code.

    Attributes:
        weight_discrimination: lambda_WoD.
        weight_correction: lambda_WoC.
        match_weight: of the words of a sentence that are its caption's, in the loss of discrimination; the others
            count 1 (released code).
        count_ends: count start and end of a sentence as words (released code).
        correct: at which words: those `masked` when the sentence was written (released code), or `all`.
    """

    heads: ClassVar[frozenset[str]] = frozenset({"word_match", "correction"})
    answers: ClassVar[frozenset[str]] = frozenset({"words"})

    weight_discrimination: float = Field(default=1e-3, ge=0)
    weight_correction: float = Field(default=1e-3, ge=0)
    match_weight: float = Field(default=0.11, ge=0)
    count_ends: bool = True
    correct: Literal["masked", "all"] = "masked"

    @model_validator(mode="after")
    def _sentences_word_by_word(self) -> TagsDc:
        if self.generator == "bank":
            raise ValueError(
                "generator = bank keeps sentences without saying which of their tokens were masked, which "
                "discrimination and correction need; use method tags, or another generator"
            )
        return self


class Ascl(MethodSettings):
    """Contrastive training with generated positives and negatives. Source: AsCL (Gong, Mai and Huang), II-B and II-D.

    Attributes:
        contrastive: the loss of Eq. 5 to 7; off, the triplet loss of Table II with the hardest negatives.
        temperature: t of the contrastive loss.
        margin: of the triplet loss.
        noise: what makes negatives of captions (Asymmetry-I): one kind, or for each caption one of them (`mixture`);
            `none` makes no negatives ("w/o Neg").
        shuffle_at: words are shuffled before the text encoder (`input`), or after it (`states`), where it changes no
            score.
        positives: what makes positives of captions: `joined` with another of the image (Asymmetry-II), `shortened`
            (Asymmetry-III), or for each caption one of both (`either`); `none` makes no positives ("w/o Pos").
        max_tokens: longest caption that joining makes, start and end included.
    """

    only_backbone: ClassVar[str] = "ascl"
    unread: ClassVar[tuple[str, ...]] = ("auxiliary_weight", "sum_epochs")

    mask_same_image: bool = True
    contrastive: bool = True
    temperature: float = Field(default=0.05, gt=0)
    margin: float = Field(default=0.2, ge=0)
    noise: Literal["mixture", "gaussian", "shuffle", "cutoff", "dropout", "none"] = "mixture"
    shuffle_at: Literal["input", "states"] = "input"
    positives: Literal["either", "joined", "shortened", "none"] = "either"
    max_tokens: int = Field(default=62, ge=3, le=65_536)

    def longest_made(self) -> int:
        """Of joined captions."""
        return self.max_tokens


def methods() -> dict[str, type[MethodSettings]]:
    """Method name -> its settings class: `tags-dc`, of `tags_dc.py`, is configured by `TagsDc`."""
    found: list[type[MethodSettings]] = []
    unread = [MethodSettings]
    while unread:
        kinds = unread.pop().__subclasses__()
        found += kinds
        unread += kinds
    return {hyphenated(kind.__name__): kind for kind in found}
