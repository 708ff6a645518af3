"""What a run records about the program that made it."""

import subprocess

import pytest

from tf_pflego.sweeps.runner import refuse_changed
from tf_pflego.system.source import source_commit


def test_source_commit_is_the_packages_own(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    module = package / "module.py"
    module.write_text("x = 1\n")
    assert source_commit(package) is None, "no repository"

    def git(*arguments):
        named = ["-c", "user.name=name", "-c", "user.email=email"]
        return subprocess.run(
            ["git", "-C", tmp_path, *named, *arguments], capture_output=True, text=True, check=True
        ).stdout

    git("init")
    assert source_commit(package) is None, "another project's repository"
    git("add", ".")
    git("commit", "-m", "first")
    commit = git("rev-parse", "--short=12", "HEAD").strip()
    assert source_commit(package) == commit
    (tmp_path / "results.csv").write_text("1\n")
    assert source_commit(package) == commit
    module.write_text("x = 2\n")
    assert source_commit(package) == f"{commit}+changes"
    # Committed results are of a commit.
    refuse_changed(tmp_path / "elsewhere", package)
    with pytest.raises(ValueError, match=rf"{commit}\+changes. Commit the changes"):
        refuse_changed(tmp_path / "results" / "field", package)
    module.write_text("x = 1\n")
    refuse_changed(tmp_path / "results" / "field", package)
