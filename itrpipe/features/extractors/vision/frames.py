"""Frames as an image processor makes them, and where they lie in the images that they were made of."""

from __future__ import annotations

import numpy as np

from itrpipe.encoders.images import ImageReader
from itrpipe.errors import UsageError

_LEVELS = 255
_MARK = 77
"""Blue of a picture that is framed; no processor fills margins with it."""
_TOLERANCE = 2


class Framing:
    """Makes frames, and finds where they begin and end in an image of some size.

    A picture is framed whose red grows from left to right and whose green grows from top to bottom. The colours that
    the frame shows tell which part of the image it is, whatever the processor does.

    Args:
        reader: of images.

    Attributes:
        reader: as given.
    """

    def __init__(self, reader: ImageReader) -> None:
        self.reader = reader
        self._windows: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return the frame [3, h, w] of an image [H, W, 3] uint8 RGB; uint8, or float32 where bytes would lose some."""
        height, width, _ = image.shape
        self.window(height, width)  # here, in a decoding thread, so that no batch waits for it
        return self.reader.framed(image).numpy()

    def window(self, height: int, width: int) -> np.ndarray:
        """Return where the frame of an image of this size lies in it: x0, y0, x1, y1 [4] float64.

        They are fractions of the image, below 0 or above 1 where the frame has a margin, and exact to about 0.2 %.

        Raises:
            UsageError: the processor changes colours so much that they do not tell.
        """
        size = (height, width)
        if size in self._windows:
            return self._windows[size]
        picture = np.full((height, width, 3), _MARK, np.uint8)
        picture[..., 0] = np.round(np.arange(width) * _step(width))
        picture[..., 1] = np.round(np.arange(height) * _step(height))[:, None]
        frame = self.reader.levels(self.reader.pixels(picture)).numpy()
        red, green, blue = frame[np.argsort(self.reader.colours)]
        is_shown = np.abs(blue - _MARK) < _TOLERANCE
        if not is_shown.any():
            raise UsageError(
                f"the image processor {type(self.reader.processor).__name__} changes colours, so that where cells lie "
                "is not known; choose another model"
            )
        x0, x1 = _ends(red, is_shown, width)
        y0, y1 = _ends(green.T, is_shown.T, height)
        self._windows[size] = np.array([x0, y0, x1, y1])
        return self._windows[size]

    def boxes(self, cells: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return cells of frames as boxes of the original images.

        Args:
            cells: [R, 4] x0, y0, x1, y1 as fractions of the frame.
            sizes: [B, 2] height and width of the images.

        Returns:
            [B, R, 4] float32, clipped to 0..1: nothing of an image lies in a margin.
        """
        windows = [self.window(height, width) for height, width in sizes.tolist()]
        corners = np.stack(windows)[:, None]  # [B, 1, 4]
        begin = np.tile(corners[..., :2], 2)
        end = np.tile(corners[..., 2:], 2)
        return (begin + cells * (end - begin)).clip(0, 1).astype(np.float32)


def _step(pixels: int) -> float:
    """Return by how many levels a colour grows from pixel to pixel: by whole levels where there are enough of them."""
    if pixels <= _LEVELS:
        return _LEVELS // pixels
    return _LEVELS / pixels


def _ends(levels: np.ndarray, shown: np.ndarray, pixels: int) -> tuple[float, float]:
    """Return where a frame begins and ends along one side of an image, as fractions of it.

    Args:
        levels: [m, n] of the colour that grows along the n.
        shown: bool [m, n], where the frame shows the image.
        pixels: of the image along this side.
    """
    places = np.flatnonzero(shown.any(axis=0))
    sums = np.where(shown, levels, 0).sum(axis=0)
    means = sums[places] / shown.sum(axis=0)[places]
    # Resizing flattens colours at the edges of an image; the middle half is a line.
    quarter = len(places) // 4
    middle = slice(quarter, len(places) - quarter)
    slope = 1 / len(places)
    begin = -places[0] * slope
    if np.ptp(means[middle]) > 0.5:  # else there is a single pixel along this side, and all of it is shown
        fractions = (means[middle] / _step(pixels) + 0.5) / pixels
        slope, at_first_pixel = np.polyfit(places[middle], fractions, 1)
        begin = at_first_pixel - slope / 2
    return begin, begin + slope * levels.shape[1]
