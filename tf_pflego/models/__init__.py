"""Models split into a shared body and per-client linear heads."""

from tf_pflego.models.networks import cifar_cnn as cifar_cnn
from tf_pflego.models.networks import cnn_fedavg as cnn_fedavg
from tf_pflego.models.networks import cnn_pgfed as cnn_pgfed
from tf_pflego.models.networks import mlp as mlp
from tf_pflego.models.networks import omniglot_cnn as omniglot_cnn
from tf_pflego.models.networks import resnet8 as resnet8
from tf_pflego.models.split_model import SplitModel as SplitModel
