"""A report of one or more runs: a page to read, or figures for a paper.

It does without TensorFlow.
"""

from tf_pflego.reports.stored import ReportedRun, RunError, read
from tf_pflego.reports.writing import FORMATS, write

__all__ = ["FORMATS", "ReportedRun", "RunError", "read", "write"]
