"""Models without their frozen part, which is computed once, and put back in files."""

from __future__ import annotations

import weakref

from tf_pflego.models.body.body import Body
from tf_pflego.models.body.frozen import Frozen, end_of, parts_of
from tf_pflego.models.split_model import SplitModel
from tf_pflego.system import log

# A model of a user's is divided once, so that its runs share what is traced.
_divided: weakref.WeakKeyDictionary[SplitModel, SplitModel] = weakref.WeakKeyDictionary()
_whole: weakref.WeakKeyDictionary[SplitModel, SplitModel] = weakref.WeakKeyDictionary()


def divided(model: SplitModel) -> SplitModel:
    """Returns the model of the trained part of a body. Its `frozen` makes the examples.

    It is the same model if the body has no useful frozen part (see `frozen.end_of`).

    Raises:
      ValueError: Dropout samples masks in the frozen part.
    """
    if model not in _divided:
        part = _part(model)
        if part is None:  # An entry would hold its own key for ever.
            return model
        _divided[model] = part
    return _divided[model]


def whole(model: SplitModel) -> SplitModel:
    """Returns the model that takes raw examples: with its frozen part before it, if it has one."""
    if model.frozen is None:
        return model
    if model not in _whole:
        body = model.frozen.before(model.body.clone(model.body.initial_theta))
        _whole[model] = model._on_body(body, frozen=None)._in_blocks()
    return _whole[model]


def _part(model):
    body = model.body
    if model.frozen is not None or end_of(body.clone.model, body.example) is None:
        return None
    try:
        parts = parts_of(body.clone(body.initial_theta), body.example)
    except ValueError as error:
        log.warning(f"the frozen part of the body is computed in each round: {error}")
        return None
    if parts is None:
        return None
    frozen = Frozen(parts.frozen, body)
    return model._on_body(Body(parts.trained, frozen.shape), frozen=frozen)
