"""Declaration of `*_precomp` folders; read without torch."""

from itrpipe.features.declaration import Count, FeatureSettings


class Precomp(FeatureSettings):
    """A `*_precomp` folder as SCAN, VSRN and AOQ publish them.

    Attributes:
        grid: rows and columns of the cells that the regions are, from the top left, row by row; the boxes of the cells
            are stored with them. Empty: the folder does not say where its regions lie, and no boxes are stored.
    """

    holds = frozenset({"regions", "global"})
    imported = True

    grid: tuple[()] | tuple[Count, Count] = ()

    def may_hold(self) -> frozenset[str]:
        if self.grid:
            return self.holds | {"boxes"}
        return self.holds
