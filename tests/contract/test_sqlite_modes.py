"""The modes of the embedded broker's file and of the files beside it: they hold the jobs' arguments; and its mount."""

import contextlib
import errno
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palermo.brokers.sqlite.file import opening
from palermo.client.client import Client
from palermo.errors import StoreInvalid
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.contract.files import fill, look, opened
from tests.contract.tools import message


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def use(folder: Path) -> dict[str, int]:
    """The modes of all that is there while the file is in use."""
    with Client(Settings(url=f"sqlite:///{folder}/jobs.db")) as client:
        client.enqueue("shop.mail", ["hunter2"])
        Inspector(client).queues.pause("mail")
        return modes(folder)


@pytest.mark.parametrize(
    ("mask", "file", "folder"),
    [(0o022, 0o600, 0o700), (0o077, 0o600, 0o700), (0o007, 0o660, 0o770), (0o000, None, None)],
    ids=["usual", "strict", "the group writes", "all write"],
)
def test_the_umask_says_whether_a_group_reads_a_file_and_nobody_else_does(
    umask: Callable[[int], int], tmp_path: Path, mask: int, file: int | None, folder: int | None
) -> None:
    umask(mask)

    found = use(tmp_path)

    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.d"} <= found.keys()
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o007} == {}
    if file is not None:
        assert (found["jobs.db"], found["jobs.db-wal"], found["jobs.db.d"]) == (file, file, folder)


def test_a_file_needs_no_mknod(umask: Callable[[int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mknod(path: str, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)  # as macOS answers

    monkeypatch.setattr(os, "mknod", mknod)

    found = use(tmp_path)

    assert (found["jobs.db"], found["jobs.db-wal"], found["jobs.db.d"]) == (0o600, 0o600, 0o700)


def test_files_beside_a_shared_file_have_its_group(umask: Callable[[int], int], tmp_path: Path) -> None:
    """Workers of another user could not open a killed worker's lock, so nobody took its job over."""
    umask(0o007)
    tmp_path.chmod(0o2770)

    found = use(tmp_path)

    assert found["jobs.db.d"] == 0o2770


def test_public_files_warn_once(umask: Callable[[int], int], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        db.execute("vacuum")
    os.chmod(tmp_path / "jobs.db", 0o644)
    with caplog.at_level(logging.WARNING, "palermo"):
        use(tmp_path)
        use(tmp_path)

    (line,) = [record.getMessage() for record in caplog.records]
    assert "chmod 600" in line
    assert "mode=644" in line
    assert (tmp_path / "jobs.db").name in line


async def test_a_file_mounted_without_its_folder_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each container would have a write-ahead log of its own: jobs of one are unseen by the other, and lost with it."""
    await fill(path, message("7c9e"))
    mounted = [("/", "overlay"), (str(path), "ext4")]
    monkeypatch.setattr(opening, "mounts", lambda: mounted)

    with pytest.raises(StoreInvalid, match="Mount its folder"):
        await opened(path)

    mounted[1] = (str(path.parent), "ext4")
    assert await look(path) == ["7c9e"]
