"""The methods as processes of TensorFlow Federated, for its users: docs/tff.md.

Here a method is a `tff.templates.IterativeProcess` with readable types and callable parts, which
works with TFF's aggregators and programs. `Simulation` with `engine="tff"` gives the same weights
faster.
"""

from tf_pflego.tff.client_evaluation import build_evaluation as build_evaluation
from tf_pflego.tff.feeding import Training as Training
from tf_pflego.tff.feeding import data_of as data_of
from tf_pflego.tff.feeding import data_spec as data_spec
from tf_pflego.tff.learning import build_learning_process as build_learning_process
from tf_pflego.tff.private_aggregator import private_aggregator as private_aggregator
from tf_pflego.tff.process import FederatedProcess as FederatedProcess
from tf_pflego.tff.process import ProcessState as ProcessState
from tf_pflego.tff.process import build_process as build_process
from tf_pflego.tff.sources import ClientsSource as ClientsSource
from tf_pflego.tff.sources import from_tff as from_tff
from tf_pflego.tff.sources import to_client_data as to_client_data
from tf_pflego.tff.types import ClientInputs as ClientInputs
from tf_pflego.tff.types import Data as Data
