"""The source tree of the package, as git knows it."""

import pathlib
import subprocess


def source_commit(package: pathlib.Path = pathlib.Path(__file__).parents[1]) -> str | None:
    """Returns the commit of a package's source tree, or None if git has none.

    If the package differs from its commit, "+changes" is appended. Files outside the package, such
    as results, do not count, since they do not change the program. A repository that merely
    surrounds the package is not its source tree. For example, the package may be installed into an
    environment inside another project's repository.
    """

    def git(*arguments):
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "--", "."):
            return None
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", ".") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
