"""The pidfile: whose it is, and when it goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from palermo.errors import SettingInvalid
from palermo.worker.parent.pidfile import pidfile


def test_it_holds_the_pid_while_the_worker_lives_and_a_second_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "worker.pid"

    with pidfile(str(path)):
        with pytest.raises(SettingInvalid, match=f"pid {os.getpid()}"), pidfile(str(path)):
            pass
        assert path.read_text() == f"{os.getpid()}\n"
        assert list(tmp_path.iterdir()) == [path]

    assert not path.exists()


def test_what_a_killed_worker_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "worker.pid"
    program = (
        "from palermo.worker.parent.pidfile import pidfile; import os;"
        f" held = pidfile({str(path)!r}); held.__enter__(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert path.exists()

    with pidfile(str(path)):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_file_that_another_wrote_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "worker.pid"

    with pidfile(str(path)):
        path.unlink()
        path.write_text("1\n")

    assert path.read_text() == "1\n"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_or_a_place_where_no_file_can_be_is_refused(tmp_path: Path, exists: bool) -> None:
    theirs = tmp_path / "theirs"
    if exists:
        theirs.write_text("precious")
    (tmp_path / "worker.pid").symlink_to(theirs)

    with pytest.raises(SettingInvalid, match="symbolic link"), pidfile(str(tmp_path / "worker.pid")):
        pass
    with pytest.raises(SettingInvalid, match="cannot be written: No such file"), pidfile(str(tmp_path / "no" / "pid")):
        pass

    assert (theirs.read_text() if exists else theirs.exists()) == ("precious" if exists else False)
