"""Declaration of TSV files of bottom-up attention; read without torch."""

from itrpipe.features.declaration import REGIONS, FeatureSettings


class ButdTsv(FeatureSettings):
    """TSV files of the bottom-up-attention tools."""

    holds = REGIONS
    imported = True
