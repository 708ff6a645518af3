"""What a run writes and shows."""

from tf_pflego.metrics.clients import client_columns, read_client_columns
from tf_pflego.metrics.progress import Progress, result_table
from tf_pflego.metrics.run_directory import RunDirectory, RunDirectoryError
from tf_pflego.metrics.source import source_commit

__all__ = [
    "Progress",
    "RunDirectory",
    "RunDirectoryError",
    "client_columns",
    "read_client_columns",
    "result_table",
    "source_commit",
]
