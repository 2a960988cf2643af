import subprocess

from distill.versions import git_state


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def test_outside_git_there_is_no_state(tmp_path):
    assert git_state(tmp_path) is None


def test_commit_dirty_and_untracked_folder(tmp_path):
    git(tmp_path, "init")
    assert git_state(tmp_path) is None  # no commit yet
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    state = git_state(package)
    assert state is not None
    assert len(state.commit) == 40
    assert not state.dirty
    installed = tmp_path / "venv"
    installed.mkdir()
    (installed / "b.py").write_text("b = 1\n")
    assert git_state(installed) is None  # inside a repository that does not hold it
    assert git_state(package).dirty
