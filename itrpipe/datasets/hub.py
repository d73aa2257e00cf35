"""Datasets of the Hub, by the library `datasets`: its cache holds them as files of Arrow, which are then the source."""

from pathlib import Path

from itrpipe.errors import MissingInputError, UsageError, reason_of

HUB = "hf:"
"""Beginning of a source that is no file."""


def fetch_source(source: Path) -> Path:
    """Return the place of a source: itself, or of a dataset of the Hub the folder of its files in the cache.

    Without a network, and with HF_HUB_OFFLINE=1, it has to be in the cache. Code of others is never run.

    Args:
        source: file or folder, or `hf:OWNER/NAME`, or `hf:OWNER/NAME:CONFIG`.

    Raises:
        UsageError: the library is not installed.
        MissingInputError: there is no such dataset or configuration, or it cannot be fetched.
    """
    name = str(source)
    if not name.startswith(HUB):
        return source
    try:
        import datasets
    except ImportError:
        raise UsageError(f"{name} needs the library datasets; run `pip install 'itrpipe[datasets]'`") from None
    repository, _, config = name.removeprefix(HUB).partition(":")
    try:
        builder = datasets.load_dataset_builder(repository, config or None)
        builder.download_and_prepare()
    except Exception as error:  # the library does not list what it raises
        raise MissingInputError(
            f"{name} cannot be fetched, nor found in the cache of datasets ({reason_of(error)}); correct it, or "
            "name a folder"
        ) from error
    return Path(builder.cache_dir)
