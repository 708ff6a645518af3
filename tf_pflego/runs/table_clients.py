"""The clients of a run on a table."""

import dataclasses

from tf_pflego.data.clients import ClientData
from tf_pflego.data.tables.preprocessing import Preprocessing
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.table_settings import ARGUMENTS, TableSettings


def load(run_config: RunConfig, preprocessing: Preprocessing | None = None) -> ClientData:
    """Returns the clients of a run's table, prepared anew or like earlier rows."""
    from tf_pflego.data.tables import dealing, reading  # They take pyarrow.

    given = {one.name: getattr(run_config, one.name) for one in dataclasses.fields(TableSettings)}
    given |= {argument: given.pop(name) for argument, name in ARGUMENTS.items()}
    given |= {name: _names(given[name]) for name in ("label", "features", "categories")}
    given |= {name: given[name] or None for name in ("features", "time")}
    where = run_config.data_dir or None, run_config.download
    given["table"] = given["table"] or reading.of_dataset(run_config.dataset, *where)
    given |= {"label_space": run_config.label_space, "seed": run_config.seed}
    clients = dealing.from_table(**given, preprocessing=preprocessing)
    class_mask = run_config.class_mask and run_config.label_space == "global"
    return dataclasses.replace(clients, class_mask=class_mask, dataset=run_config.dataset)


def _names(text):
    return [name.strip() for name in text.split(",") if name.strip()]
