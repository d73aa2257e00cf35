"""A tiny folder of people's judgements, as published and as tables with a header."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

TEXTS = {
    "dog.jpg": ("a dog runs over the grass", "the brown dog is running on grass"),
    "puppy.jpg": ("a brown dog runs on grass", "a running dog"),
    "bus.jpg": ("a red bus stops at the station", "people wait for the red bus"),
    "car.jpg": ("a red car stops in the street", "the car is parked"),
    "unused.jpg": ("nobody was asked about this one", "nor about this"),
}
EXPERTS = (
    ("dog.jpg", "dog.jpg#0", 4, 4, 4),
    ("dog.jpg", "puppy.jpg#0", 4, 3, 4),
    ("puppy.jpg", "car.jpg#1", 1, 2, 1),
    ("bus.jpg", "car.jpg#0", 2, 1, 2),
    ("car.jpg", "dog.jpg#0", 1, 1, 1),
)
CROWD = (
    ("dog.jpg", "puppy.jpg#1", 1, 3, 0),
    ("bus.jpg", "car.jpg#1", 0.3333, 1, 2),
    ("car.jpg", "puppy.jpg#1", 0, 0, 3),
    ("bus.jpg", "puppy.jpg#0", 0, 0, 3),
)


def write_judgements(folder: Path, *, published: bool = False, photographs: str = "") -> Path:
    """Write the files of judgements, and photographs into a folder of this name, if it has one."""
    folder.mkdir(parents=True)
    captions = []
    for image, texts in TEXTS.items():
        for number, text in enumerate(texts):
            captions.append((f"{image}#{number}", text) if published else (image, f"{image}#{number}", text))
    names = ("Flickr8k.token.txt", "ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt")
    headers = [[], [], []]
    if not published:
        names = ("captions.tsv", "expert.tsv", "crowd.tsv")
        headers = [
            ["image\tcaption_id\tcaption"],
            ["image\tcaption_id\trating_1\trating_2\trating_3"],
            ["image\tcaption_id\tshare_yes\tyes\tno"],
        ]
    for name, header, rows in zip(names, headers, (captions, EXPERTS, CROWD), strict=True):
        lines = header + ["\t".join(map(str, row)) for row in rows]
        (folder / name).write_text("\n".join(lines) + "\n")
    if photographs:
        (folder / photographs).mkdir()
        for number, image in enumerate(TEXTS):
            Image.new("RGB", (40 + number, 30), (40 * number, 90, 200)).save(folder / photographs / image)
    return folder
