"""Settings where nothing is trained."""

from itrpipe.methods.declaration import MethodSettings
from itrpipe.papers import CLIP


class ZeroShot(MethodSettings):
    """The model keeps the weights that it was published with. Source: CLIP (Radford et al., ICML 2021)."""

    papers = (CLIP,)
    trains = False
