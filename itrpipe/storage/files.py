"""Names of the files that one stage writes and another room reads."""

SCENES_FILE = "scenes.jsonl"
"""File of the embedded dataset, as it is prepared."""

METRICS, RANKINGS, CROSS_RETRIEVAL = "metrics.json", "rankings.parquet", "cross_retrieval.parquet"
"""Files of every evaluation."""

QUERY_LENGTH, ALIGNMENT, ECCV_CAPTION = "query_length.json", "alignment.json", "eccv_caption.json"
MATCHING, PHRASES = "matching.json", "phrases.parquet"
FALSE_NEGATIVES, HARD_CANDIDATES = "false_negatives.json", "false_negatives.parquet"
WORD_MAPS = "word_maps.parquet"
WORDS, WORD_CORRECTIONS = "words.json", "word_corrections.parquet"
DISCRIMINATION = "discrimination.json"
SECOND_ROUND = "second_round.json"
CORRECTED = "corrected.json"
BENCHMARKS, BENCHMARK_PAIRS = "benchmarks.json", "benchmark_pairs.parquet"
"""Files of evaluations that ask for them, or whose model can be asked; see `itrpipe.analysis.questions`."""

HISTORY = "history.parquet"
"""File of a training."""

LEAKS, REPEATS = "leaks.tsv", "repeats.tsv"
"""Files of a prepared dataset that has some."""

EXPORT = "export.json"
"""Of an exported folder: says what every other file of it is; also what a folder is known by that may be replaced."""

PICTURES = "pictures"
"""Folder of small copies of photographs, beside a dataset's artifacts."""

REPORT_PAGE = "index.html"
"""File of a report."""

STATISTICS = "statistics.json"
"""File of mined negatives, and of written sentences."""
