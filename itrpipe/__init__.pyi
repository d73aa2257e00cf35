from itrpipe.retrieval.model import RetrievalModel as RetrievalModel
from itrpipe.retrieval.opening import load as load

__version__: str
