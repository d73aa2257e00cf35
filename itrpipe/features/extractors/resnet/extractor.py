"""Convolutional networks of transformers: a vector per cell of the last feature map, and their pool for the image.

ResNet, RegNet, ConvNeXT and ConvNeXT V2. `/regions` are the cells of the last feature map, `/global` is the pooled
output: the mean over the cells, normed in ConvNeXT. A cell's box is its share of the frame, which the feature map
divides evenly.

Source: "Deep Residual Learning for Image Recognition" (ResNet), "Designing Network Design Spaces" (RegNet),
"A ConvNet for the 2020s" (ConvNeXT), "ConvNeXt V2".
"""

import torch

from itrpipe.features.extractors.resnet.declaration import Resnet
from itrpipe.features.extractors.vit.extractor import GridExtractor
from itrpipe.features.hub import MAPS


def build(settings: Resnet, device: torch.device) -> GridExtractor:
    """Returns the extractor of a convolutional network; errors as of `open_vision`."""
    return GridExtractor(settings, MAPS, device, torch.channels_last)
