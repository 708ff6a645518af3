"""The clients of a run on a table."""

import dataclasses

from tf_pflego.data.clients import ClientData
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.runs.config import RunConfig


def load(run_config: RunConfig, preprocessing: Preprocessing | None = None) -> ClientData:
    """Returns the clients of a run's table, prepared anew or like earlier rows."""
    from tf_pflego.data.tables import dealing, reading  # They take pyarrow.

    where = run_config.data_dir or None, run_config.download
    clients = dealing.from_table(
        run_config.table or reading.of_dataset(run_config.dataset, *where),
        run_config.client_column,
        _names(run_config.label_column),
        _names(run_config.feature_columns) or None,
        test=run_config.split,
        time=run_config.time_column or None,
        task=run_config.task,
        missing=run_config.missing,
        categories=_names(run_config.category_columns),
        min_rows=run_config.min_rows,
        small_clients=run_config.small_clients,
        label_space=run_config.label_space,
        seed=run_config.seed,
        preprocessing=preprocessing,
        separator=run_config.separator,
        decimal=run_config.decimal,
    )
    class_mask = run_config.class_mask and run_config.label_space == "global"
    return dataclasses.replace(clients, class_mask=class_mask, dataset=run_config.dataset)


def _names(text):
    return [name.strip() for name in text.split(",") if name.strip()]
