"""Engines, which contain clients and run them. TFF, Ray and devices have their own packages."""

from tf_pflego.engines.engine import Asked as Asked
from tf_pflego.engines.engine import Cohort as Cohort
from tf_pflego.engines.engine import Engine as Engine
from tf_pflego.engines.engine import Outcome as Outcome
from tf_pflego.engines.engine import Place as Place
from tf_pflego.engines.engine import ShardLostError as ShardLostError
from tf_pflego.engines.engine import WorkerError as WorkerError
from tf_pflego.engines.in_process import InProcess as InProcess
from tf_pflego.engines.in_process import InProcessEngine as InProcessEngine
from tf_pflego.engines.threads import prepare_process as prepare_process
