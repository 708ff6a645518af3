"""What a run has learnt, as models that can be used without it."""

from tf_pflego.serving.client_models import ClientModels

__all__ = ["ClientModels"]
