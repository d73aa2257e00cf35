"""Captions and hard negatives as models without images see them.

Such a model can tell a negative where it is odd English (trigrams of the training captions find it), or where its words
stand in negatives more often than in captions (naive Bayes and logistic regression find them, which have learned from
the pairs of other images). An accuracy says something about images as far as all are at chance.

    blind_points(pairs, ...)    which pairs each of them tells apart
    refined(pairs, trigrams)    pairs of which trigrams and naive Bayes are right about as often as wrong

Pairs that two of the models have chosen leave these at chance by construction: logistic regression, which also reads
pairs of words with one between them, chooses none and says what is left, and so does the same of the vectors of a text
encoder, where one is there.

Shapes: P pairs, W words of all sentences with their ends, D width of a vector.

Source: Hsieh et al., "SugarCrepe" (NeurIPS 2023), sections 3 and 4 (text-only models, adversarial refinement); here the
models are n-grams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from itrpipe.datasets.vocabulary import tokenize
from itrpipe.evaluation.intervals import mean_figures

MODELS = ("trigrams", "naive Bayes", "logistic regression", "text encoder")
LIMIT = 55.0
"""Percent above which pairs can be answered without the image."""
_ORDERS = (1, 2, 3)
_SHARES = (0.1, 0.3, 0.6)
"""Shares of words, bigrams and trigrams in the probability of a word."""
FEWEST = 100
"""Pairs that can be refined: of fewer, hardly one would stay."""
_FOLDS, _ROUNDS, _LEVELS = 5, 3, 4
_BITS = 21
_START, _END = 1, 2
"""No number is 0, so that n-grams of different orders are different numbers, and 0 stands for any word."""
_STEPS = 100


class Pairs(NamedTuple):
    """Captions and their hard negatives.

    Attributes:
        captions, negatives: P sentences each.
        images: int64 [P], row of each pair's image.
    """

    captions: Sequence[str]
    negatives: Sequence[str]
    images: np.ndarray

    def only(self, rows: np.ndarray) -> Pairs:
        """Return the pairs of some rows."""
        captions = [self.captions[int(row)] for row in rows]
        negatives = [self.negatives[int(row)] for row in rows]
        return Pairs(captions, negatives, self.images[rows])


class _Words:
    """The words of sentences as numbers, with two starts before and an end behind each.

    Attributes:
        vocabulary: word -> number.
        ids: int64.
        places: int64 [W], where words and ends stand in `ids`.
        row: int64 [W], the sentence of each.
    """

    def __init__(self, tokens: pa.Array, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary
        words: Any = tokens.flatten().dictionary_encode()
        numbers = []
        for word in words.dictionary.to_pylist():
            numbers.append(vocabulary.setdefault(word, len(vocabulary) + _END + 1))
        counts = np.diff(tokens.offsets.to_numpy())
        self.row = np.repeat(np.arange(len(counts)), counts + 1)
        self.places = np.arange(len(self.row)) + 2 * self.row + 2
        last = np.cumsum(counts + 1) - 1
        self.ids = np.full(len(self.row) + 2 * len(counts), _START)
        self.ids[self.places[last]] = _END
        places_of_words = np.delete(self.places, last)
        self.ids[places_of_words] = np.array(numbers, np.int64)[words.indices.to_numpy()]

    def ngrams(self, order: int, back: int = 0) -> np.ndarray:
        """Return the n-gram that ends so many words before each, as one number; int64 [W]."""
        ngrams = np.zeros(len(self.places), np.int64)
        for before in reversed(range(back, back + order)):
            ngrams = (ngrams << _BITS) | self.ids[self.places - before]
        return ngrams


class _NgramCounts:
    """Counts of the n-grams of some captions.

    Args:
        words: of the captions.

    Attributes:
        total: words of the captions and of the vocabulary, 1 at least.
        ngrams: of each order, the rising numbers of its n-grams, and of those one shorter that stand before a word.
    """

    def __init__(self, words: _Words) -> None:
        self.total = max(1, len(words.row) + len(words.vocabulary))
        self.ngrams: list[tuple[np.ndarray, np.ndarray]] = []
        for order in _ORDERS:
            contexts = words.ngrams(order - 1, back=1)
            self.ngrams.append((np.sort(words.ngrams(order)), np.sort(contexts)))

    def probabilities(self, words: _Words, chosen: np.ndarray) -> np.ndarray:
        """Return the probability of each chosen word of sentences, after those before it; float64."""
        probabilities = np.full(int(chosen.sum()), _SHARES[0] / self.total)
        for order, share, (ngrams, contexts) in zip(_ORDERS, _SHARES, self.ngrams, strict=True):
            ngram_counts = _occurrences(ngrams, words.ngrams(order)[chosen])
            context = words.ngrams(order - 1, back=1)[chosen]
            context_counts = _occurrences(contexts, context)
            probabilities += share * ngram_counts / np.maximum(context_counts, 1)
        return probabilities


def _occurrences(rising: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return how often each of some numbers stands among rising ones, int64."""
    return np.searchsorted(rising, numbers, "right") - np.searchsorted(rising, numbers)


class Trigrams:
    """Probabilities of words after the two before them, from captions.

    Args:
        tokens: list<string> of one caption at least.
        images: int64, row of each caption's image, where pairs are made of these captions: what is said of an image is
            then judged by captions of others. None: pairs are made of other captions.
    """

    def __init__(
        self,
        tokens: pa.ChunkedArray,
        images: np.ndarray | None = None,
    ) -> None:
        self.vocabulary: dict[str, int] = {}
        folds = [np.ones(len(tokens), bool)]
        if images is not None:
            folds = [images % _FOLDS != fold for fold in range(_FOLDS)]
        self._counts = []
        for chosen in folds:
            captions = tokens.filter(pa.array(chosen)).combine_chunks()
            self._counts.append(_NgramCounts(_Words(captions, self.vocabulary)))

    def scores(self, sentences: _Words, images: np.ndarray) -> np.ndarray:
        """Return the mean logarithm of the probabilities of the words of each sentence of an image; float64."""
        probabilities = np.ones(len(sentences.row))
        folds = (images % len(self._counts))[sentences.row]
        for fold, counts in enumerate(self._counts):
            chosen = folds == fold
            probabilities[chosen] = counts.probabilities(sentences, chosen)
        return np.bincount(sentences.row, np.log(probabilities)) / np.bincount(sentences.row)


def _words_of(pairs: Pairs, trigrams: Trigrams) -> _Words:
    """Return the words of P captions and then of their P negatives."""
    sentences = [*pairs.captions, *pairs.negatives]
    tokens = pa.array(map(tokenize, sentences), pa.list_(pa.string()))
    return _Words(tokens, dict(trigrams.vocabulary))


def _margins(pairs: Pairs, trigrams: Trigrams) -> np.ndarray:
    """Return by how much trigrams and naive Bayes prefer the caption; float64 [2, P], 0 where they cannot tell."""
    words = _words_of(pairs, trigrams)
    images = np.tile(pairs.images, 2)
    captions, negatives = trigrams.scores(words, images).reshape(2, -1)
    differences = _Differences.between(words)
    bayes = differences.margins(pairs.images % _FOLDS, _Differences.odds)
    return np.stack([captions - negatives, bayes]).round(9)


class _Differences(NamedTuple):
    """Differences of how often n-grams stand in captions and in their negatives.

    Attributes:
        rows: int64 [D], pair of each difference.
        columns: int64 [D], n-gram.
        more: float64 [D], not 0.
        pairs, ngrams: how many there are.
    """

    rows: np.ndarray
    columns: np.ndarray
    more: np.ndarray
    pairs: int
    ngrams: int

    @classmethod
    def between(cls, words: _Words, gapped: bool = False) -> _Differences:
        """Return the differences of P captions and P negatives, if asked for also of words with one between them."""
        ngrams = [words.ngrams(order) for order in _ORDERS]
        if gapped:
            first_words = words.ids[words.places - 2]
            ngrams.append((first_words << 2 * _BITS) | words.ids[words.places])
        pairs = (words.row.max(initial=-1) + 1) // 2
        is_negative, pair = np.divmod(words.row, pairs)
        rows = np.tile(pair, len(ngrams))
        signs = np.tile(1 - 2 * is_negative, len(ngrams))
        kinds, columns = np.unique(np.concatenate(ngrams), return_inverse=True)
        cells, cell = np.unique(rows * len(kinds) + columns, return_inverse=True)
        more = np.bincount(cell, signs)
        rows, columns = np.divmod(cells[more != 0], len(kinds))
        return cls(
            rows,
            columns,
            more[more != 0],
            pairs,
            len(kinds),
        )

    @classmethod
    def of_vectors(cls, vectors: np.ndarray) -> _Differences:
        """Return the elements of differences [P, D] of vectors, of unit variance, in the place of those of n-grams."""
        rows, columns = np.indices(vectors.shape).reshape(2, -1)
        return cls(
            rows,
            columns,
            vectors.ravel() / vectors.std(),
            *vectors.shape,
        )

    def only(self, chosen: np.ndarray) -> _Differences:
        """Return some of them, by a mask."""
        return self._replace(
            rows=self.rows[chosen],
            columns=self.columns[chosen],
            more=self.more[chosen],
        )

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Return the sum of weighted differences of each pair; float64 [P]."""
        return np.bincount(self.rows, self.more * weights[self.columns], minlength=self.pairs)

    def margins(
        self,
        folds: np.ndarray,
        learn: Callable[[_Differences], np.ndarray],
    ) -> np.ndarray:
        """Return how much each pair's caption is preferred by weights that are learned from the other folds."""
        margins = np.zeros(self.pairs)
        for fold in range(_FOLDS):
            is_inside = folds[self.rows] == fold
            weights = learn(self.only(~is_inside))
            margins += self.only(is_inside).sums(weights)
        return margins

    def odds(self) -> np.ndarray:
        """Return the weights of naive Bayes."""
        in_captions = np.bincount(self.columns[self.more > 0], minlength=self.ngrams)
        in_negatives = np.bincount(self.columns[self.more < 0], minlength=self.ngrams)
        return np.log(in_captions + 1) - np.log(in_negatives + 1)

    def regression(self) -> np.ndarray:
        """Return the weights of logistic regression with a penalty of half their squares.

        Steps are those of Nesterov's method, each weight's by a bound of the curvature.
        """
        sizes = np.abs(self.more)
        sizes_of_pairs = np.bincount(self.rows, sizes, minlength=self.pairs)
        bounds = np.bincount(self.columns, sizes * sizes_of_pairs[self.rows], minlength=self.ngrams)
        curvature = 1 + bounds / 4
        weights = np.zeros(self.ngrams)
        ahead = weights
        for step in range(_STEPS):
            wrong = 1 / (1 + np.exp(self.sums(ahead)))
            slopes = np.bincount(self.columns, self.more * wrong[self.rows], minlength=self.ngrams)
            moved = ahead - (ahead - slopes) / curvature
            ahead = moved + step / (step + 3) * (moved - weights)
            weights = moved
        return weights


def blind_points(
    pairs: Pairs,
    kinds: np.ndarray,
    trigrams: Trigrams,
    vectors: np.ndarray | None = None,
) -> np.ndarray:
    """Return the percent that each model gets for each pair; float64 [P, 3 or 4]: 100, 50 of a tie, or 0.

    Args:
        pairs: captions and negatives.
        kinds: text [P]; classifiers learn each apart.
        trigrams: of the training captions.
        vectors: [P, D] of captions less those of their negatives by a text encoder, if there is one.
    """
    num_models = 3 if vectors is None else 4
    points = np.full((len(kinds), num_models), 50.0)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        pairs_of_kind = pairs.only(rows)
        features = [_Differences.between(_words_of(pairs_of_kind, trigrams), gapped=True)]
        if vectors is not None:
            features.append(_Differences.of_vectors(vectors[rows]))
        margins = list(_margins(pairs_of_kind, trigrams))
        for differences in features:
            margins.append(differences.margins(pairs_of_kind.images % _FOLDS, _Differences.regression))
        points[rows] += 50.0 * np.sign(np.round(margins, 9)).T
    return points


def blind_accuracy(
    points: np.ndarray,
    images: np.ndarray,
    samples: int,
    level: float,
) -> dict[str, Any]:
    """Return the percent of pairs that the best model tells apart.

    Args:
        points: of `blind_points`; one pair at least.
        images: int64 [P], row of each pair's image.
        samples: resampled test sets, of images with all their pairs.
        level: share of them inside an interval, 0..1.

    Returns:
        value, low, high, the model that it is `by`, and whether they are `guessed`: more than `LIMIT` of them, and more
        than half by the whole interval.
    """
    points_of_models: dict[str, np.ndarray] = dict(zip(MODELS, points.T, strict=False))
    figures = mean_figures(points_of_models, images, samples, level)
    by = max(figures, key=lambda name: figures[name]["value"])
    best = figures[by]
    guessed = best["value"] > LIMIT and best["low"] > 50.0
    return {**best, "by": by, "guessed": guessed}


def refined(pairs: Pairs, trigrams: Trigrams) -> np.ndarray:
    """Return ascending rows of pairs of which trigrams and naive Bayes are right about as often as wrong.

    Of fewer than `FEWEST` pairs all stay.

    Pairs by how sure each model is, and whether they agree, lie in cells; of a cell as many stay that are answered
    rightly as wrongly. The models then learn from what stayed, and it is done again by the mean of what they say now
    and said before.
    """
    rows = np.arange(len(pairs.images))
    before = None
    for _ in range(_ROUNDS):
        if len(rows) < FEWEST:
            break
        margins = _margins(pairs.only(rows), trigrams)
        if before is not None:
            margins = (margins + before) / 2
        stay = _balance(margins)
        rows = rows[stay]
        before = margins[:, stay]
    return rows


def _balance(margins: np.ndarray) -> np.ndarray:
    """Choose as many right as wrong answers of every cell, of [2, P] margins; bool [P]."""
    sizes = np.abs(margins)
    shares = np.linspace(0, 1, _LEVELS + 1)[1:-1]
    edges = np.quantile(sizes, shares, axis=1).T
    levels = map(np.digitize, sizes, edges)
    first, second = np.sign(margins)
    answer = np.where(first != 0, first, second)
    traits = np.stack([*levels, first * answer, second * answer])
    _, cells = np.unique(traits, axis=1, return_inverse=True)
    cells = cells.reshape(-1)
    stay = answer == 0
    shuffled = np.random.default_rng(0).permutation(len(answer))
    for cell in range(cells.max(initial=-1) + 1):
        inside = shuffled[cells[shuffled] == cell]
        right = inside[answer[inside] > 0]
        wrong = inside[answer[inside] < 0]
        fewer = min(len(right), len(wrong))
        stay[right[:fewer]] = True
        stay[wrong[:fewer]] = True
    return stay
