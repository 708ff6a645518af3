"""What a run records about the program that made it."""

import subprocess

from tf_pflego.runs.training import source_commit


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
