"""The limits of export, checked before any work is done for it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_pflego.models.divided import whole
from tf_pflego.simulation.client_models import served_name, split_model, split_of_served
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.system import values

FORMATS = ("savedmodel", "keras", "tflite")
QUANTIZATIONS = ("none", "float16", "int8")


def refuse_what_cannot_leave(
    simulation: Simulation,
    format: str = "savedmodel",
    served_model: str | None = None,
    quantize: str = "none",
    learning: bool = True,
) -> None:
    """Raises ValueError if models cannot be exported in this way (see `export_clients`)."""
    values.instance("simulation", simulation, Simulation, "Make it with `build_simulation`.")
    values.one_of("format", format, FORMATS)
    values.one_of("quantize", quantize, QUANTIZATIONS)
    if quantize != "none" and format != "tflite":
        raise ValueError(
            f"`quantize` must be none for {format}; got {quantize}. Choose `format='tflite'`."
        )
    algorithm = simulation.algorithm
    name = served_name(algorithm, served_model)
    served = algorithm.served[name]
    model = whole(split_of_served(algorithm, name) or split_model(algorithm))
    if format == "keras":
        model.task.keras_activation()
        model.body.refuse_lambda_layers("`format='keras'`")
    columns = () if (of_table := simulation.data.preprocessing) is None else of_table.columns
    if format == "tflite" and (far := [one for one in columns if one.dtype == np.float64]):
        raise ValueError(
            f"the column {far[0].name!r} must be nearer to 0 for TFLite, which has float32 alone, "
            f"with mean {far[0].mean:.10g} and deviation {far[0].deviation:.4g}. Subtract "
            "the mean from it in the table, or choose `format='savedmodel'`."
        )
    if format == "tflite" and (texts := [one.name for one in columns if one.is_text]):
        raise ValueError(
            f"`format` must be savedmodel or keras for the text column {texts[0]!r}, since TFLite "
            "has no operation that splits a text into words; got tflite. Choose "
            "`format='savedmodel'`."
        )
    if format != "tflite" or not learning or not model.body.has_loops:
        return
    if served.personalize is None:
        raise ValueError(
            "`learning` must be left out for TFLite if clients train a body with loops, as "
            f"recurrent layers have: TFLite has no gradient of them; {algorithm.name} "
            "trains the whole network. Export with `learning=False`, or `format='savedmodel'`."
        )
    if tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 20):
        raise ValueError(
            "`learning` must be left out for TFLite if a body has loops, as recurrent layers have, "
            f"where the interpreter lacks TensorFlow's operations; TensorFlow {tf.__version__} is "
            "installed, which lacks them from 2.20 on. Export with `learning=False`, or "
            "`format='savedmodel'`."
        )
