from itrpipe.evaluation.compare import Claim as Claim
from itrpipe.evaluation.compare import compare as compare
from itrpipe.evaluation.results import Evaluation as Evaluation
from itrpipe.evaluation.results import evaluate as evaluate
from itrpipe.judging.judge import Judged as Judged
from itrpipe.judging.judge import judge as judge
from itrpipe.mining.lists import MinedLists as MinedLists
from itrpipe.mining.mine import mine as mine
from itrpipe.project import Project as Project
from itrpipe.search.model import RetrievalModel as RetrievalModel
from itrpipe.search.model import load as load

__version__: str
