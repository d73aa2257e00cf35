"""Declaration of UNITER's folders; read without torch."""

from itrpipe.features.declaration import RegionSettings


class Uniter(RegionSettings):
    """LMDB or npz folders of UNITER; the settings choose among the regions stored for an image."""

    imported = True
