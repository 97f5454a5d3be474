"""The temporary index keeps its law: under kill -9, a full disk, an exception, several threads, and close."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palermo.errors import StoreInvalid
from palermo.temp_index import Database, TempIndex


class Words:
    """The smallest owner: a table of words, and a number of them in memory."""

    def __init__(self) -> None:
        self.index = TempIndex(
            "create table word (text text not null)", name="the list of words", cache_kib=64, opened=self._opened
        )

    def _opened(self, db: Database) -> None:
        self.db = db
        self.remembered = 0

    def put(self, *words: str) -> None:
        with self.index.write():
            for word in words:
                self.db.execute("insert into word values (?)", (word.strip(),))
                self.remembered += 1

    def count(self, pattern: str = "*") -> int:
        with self.index.read():
            (count,) = self.db.execute("select count(*) from word where fits(fold(text), ?)", (pattern,)).fetchone()
            return int(count)


@pytest.fixture
def words() -> Iterator[Words]:
    words = Words()
    yield words
    words.index.close()


#: A process whose index is larger than its cache: it says so, and how much, and waits to be killed.
FILLS = """
import sys
from tests.test_temp_index import Words

words = Words()
words.put(*("x" * 1_000 for _ in range(2_000)))
print(words.index.file_size(), flush=True)
sys.stdin.read()
"""

#: A process that may write files of 256 KiB: above that the system refuses a write, as it does on a full disk.
IS_REFUSED = """
import resource
from palermo.errors import StoreInvalid
from tests.test_temp_index import Words

resource.setrlimit(resource.RLIMIT_FSIZE, (262_144, 262_144))
words = Words()
words.put("before")
for _ in range(3):
    try:
        words.put(*("x" * 1_000 for _ in range(2_000)))
    except StoreInvalid as error:
        print(error)
    assert (words.count(), words.remembered) == (0, 0)
words.put("after")
assert words.count() == 1
"""


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "SQLITE_TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", FILLS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        size = int(process.stdout.readline())
        opened = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]

        process.send_signal(signal.SIGKILL)

    assert size > 2_000_000
    assert [name.endswith(" (deleted)") for name in opened if name.startswith(str(tmp_path))] == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_empties_the_index_which_is_filled_again() -> None:
    done = subprocess.run([sys.executable, "-c", IS_REFUSED], capture_output=True, text=True, check=True)

    told = done.stdout.splitlines()
    assert len(told) == 3
    assert all(line.startswith("the list of words cannot be used: ") and "TMPDIR" in line for line in told)


def test_a_write_that_raises_leaves_nothing_not_even_in_memory(words: Words) -> None:
    words.put("before")

    with pytest.raises(AttributeError):
        words.put("half", None)  # type: ignore[arg-type]

    assert (words.count(), words.remembered) == (0, 0)
    words.put("after")
    assert (words.count(), words.remembered) == (1, 1)


def test_a_read_that_fails_changes_nothing(words: Words) -> None:
    words.put("before")

    with pytest.raises(StoreInvalid, match=r"the list of words cannot be used: no such column"), words.index.read():
        words.db.execute("select missing from word")
    with pytest.raises(ZeroDivisionError), words.index.read():
        _ = 1 / 0
    with words.index.read():
        words.put("within")

    assert words.count() == 2


def test_no_thread_sees_half_of_a_write(words: Words) -> None:
    seen: set[int] = set()
    ended = threading.Event()

    def write() -> None:
        for _ in range(200):
            words.put("one", "two", "three")

    def look() -> None:
        while not ended.is_set():
            seen.add(words.count() % 3)

    with ThreadPoolExecutor(4) as threads:
        looking = [threads.submit(look) for _ in range(2)]
        writing = [threads.submit(write) for _ in range(2)]
        try:
            for each in writing:
                each.result()
        finally:
            ended.set()
        for each in looking:
            each.result()

    assert seen == {0}
    assert words.count() == words.remembered == 1_200


def test_closing_waits_for_a_block_and_then_refuses_writers(words: Words) -> None:
    words.put("before")
    inside, closed = threading.Event(), threading.Event()

    def close() -> None:
        inside.wait()
        words.index.close()
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    with words.index.read():
        inside.set()
        assert not closed.wait(0.05)
        assert words.count() == 1
    closing.join()

    assert (words.count(), words.remembered) == (0, 0)
    with pytest.raises(StoreInvalid, match=r"^the list of words is closed\.$"):
        words.put("after")
    words.index.reset()
    words.index.close()
    assert words.count() == 0


def test_a_reset_frees_the_space(words: Words) -> None:
    words.put(*("x" * 1_000 for _ in range(500)))
    full = words.index.file_size()

    words.index.reset()

    assert full > 500_000
    assert words.index.file_size() < 50_000
    assert words.count() == 0


def test_queries_may_use_the_wildcards_and_the_case_of_filters(words: Words) -> None:
    words.put("Straße", "STRASSE", "street")

    assert (words.count("strasse"), words.count("str*"), words.count("=STRASSE")) == (2, 3, 0)


@pytest.fixture
def garbage_of_its_own() -> None:
    """Collections look at no object from before: after thousands of tests each would take a second."""
    gc.collect()
    gc.freeze()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("garbage_of_its_own")
def test_an_index_that_nobody_closes_goes_with_its_owner_without_a_warning() -> None:
    for round in range(300):
        owners = [Words() for _ in range(3)]
        # Python finalizes garbage in an order that depends on the generations of the objects.
        for every, generation in ((3, 0), (5, 1), (4, 2)):
            if round % every == 0:
                gc.collect(generation)
        if round % 2:
            owners[round % 3].index.reset()
        del owners
        if round % 4 == 3:
            gc.collect()
    gc.collect()
