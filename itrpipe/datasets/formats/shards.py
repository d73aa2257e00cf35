"""WebDataset's tar files: samples of a photograph and its captions."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from itrpipe.datasets.archives import ENDINGS, TAR, naming
from itrpipe.datasets.formats.base import SourceContent, SourceImage, give_ids
from itrpipe.datasets.formats.columns import ColumnSettings
from itrpipe.datasets.formats.splits import split_in_name
from itrpipe.datasets.source_files import STRICT, validated
from itrpipe.datasets.tars import read_tar_member, tar_members
from itrpipe.errors import DataError
from itrpipe.storage.disk import reading


def find_shards(source: Path) -> list[Path]:
    """Return the tar files below a folder, without hidden ones; of a source that is a tar file, this file."""
    if source.is_file():
        return [source] if source.suffix.lower() == TAR else []
    paths = []
    for folder, folders, names in os.walk(source):
        for name in names:
            if name.lower().endswith(TAR):
                paths.append(Path(folder, name))
        for name in folders:
            path = Path(folder, name)
            # A link out of the source is not followed, but refused where it leads to tar files.
            if path.is_symlink() and not path.resolve().is_relative_to(source.resolve()):
                paths += path.glob("*.[tT][aA][rR]")
    return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


def read_shards(source: Path, columns: ColumnSettings) -> SourceContent:
    """Read WebDataset's tar files, all below a folder, or one.

    Files of a sample have one key, which ends at the first full stop: an image, and its caption, which is all of
    `KEY.txt`, or in `KEY.json` is `caption`, or several are `captions`. The name of a shard, or of a folder that it
    lies in, has the name of its split between other characters than letters, as `cc3m-train-00000.tar` or
    `validation/0.tar`. An image is called as its file in the tar file, see `give_ids`.
    """
    images = []
    captions = []
    left_out = {}
    root = source if source.is_dir() else source.parent
    for archive in find_shards(source):
        name = archive.relative_to(root).as_posix()
        with naming(archive):
            split = split_in_name(name)
            names = tar_members(archive)
        samples = {}  # key -> ending -> name
        for member in names:
            folder, _, file = member.rpartition("/")
            key, _, ending = file.partition(".")
            files = samples.setdefault(f"{folder}/{key}".lstrip("/"), {})
            files[f".{ending.lower()}"] = member
        for key, files in samples.items():
            photographs = [files[ending] for ending in ENDINGS if ending in files]
            texts = []
            if photographs:
                texts = _captions_of_sample(archive, files)
            if not texts:
                if photographs:
                    reason = "have a photograph and no caption; write it into KEY.txt, or into KEY.json as caption"
                elif any(ending.endswith(ENDINGS) for ending in files):
                    reason = "have names with further full stops; a key ends at the first one, so rename them"
                else:
                    reason = f"have no photograph ({', '.join(ENDINGS)})"
                left_out.setdefault(reason, []).append(f"{name[: -len(TAR)]}/{key}")
                continue
            for text in texts:
                captions.append((len(images), text))
            file = photographs[0]
            images.append(SourceImage(file, f"{name}/{file}", split, key))
    reasons = [f"{len(keys):,} samples, such as {keys[0]}, {reason}" for reason, keys in left_out.items()]
    if reasons and not images:
        raise DataError(f"{source}: no sample has a photograph and a caption: {'; '.join(reasons)}")
    return give_ids(images, captions, [f"left out: {reason}" for reason in reasons])


@STRICT
class _Sample(TypedDict):
    caption: NotRequired[str | None]
    captions: NotRequired[list[str] | None]


_SAMPLE = TypeAdapter(_Sample)


def _captions_of_sample(archive: Path, files: Mapping[str, str]) -> list[str]:
    """Return the captions of a sample; blank ones do not count."""
    for ending in (".txt", ".json"):
        if ending not in files:
            continue
        where = archive / files[ending]
        with reading(where, "captions in UTF-8", "make the file again"):
            content = read_tar_member(archive, files[ending]).decode("utf-8-sig")
        if ending == ".txt":
            # The end of a file's last line is no part of its text.
            texts = [re.sub(r"\r?\n\Z", "", content)]
        else:
            sample = validated(_SAMPLE.validate_json, content, where)
            texts = sample.get("captions") or [sample.get("caption") or ""]
        if any(text.strip() for text in texts):
            return texts
    return []
