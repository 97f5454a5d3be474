"""Check an SQLite file as a broker: its settings, its disk, and whether it is writable."""

import os
import shutil
import sqlite3

from palermo.brokers.features.diagnosis import try_out, unreadable
from palermo.brokers.features.steps import StepStore
from palermo.brokers.sqlite.file.mounts import mounts
from palermo.brokers.sqlite.file.store import Store
from palermo.contract.broker import Finding
from palermo.core.text import count
from palermo.errors import PalermoError

#: Network file systems, which lack the locks and the shared memory that SQLite needs.
NETWORK = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "9p",
            "afs",
            "ceph",
            "glusterfs",
            "lustre",
            "beegfs",
            "ocfs2",
            "gfs2",
        ),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "davfs", "fuse.davfs2"),
    }
)

#: Free bytes below which writes are about to fail, and below which an operator should act.
_FULL_BELOW, _LOW_BELOW = 100 * 1024**2, 1024**3

#: Size of the write-ahead log, in bytes, that indicates that some program prevents checkpoints.
_LONG_WAL = 256 * 1024**2


async def diagnose(store: Store, steps: StepStore, exchange: str) -> list[Finding]:
    """All findings; nothing is raised."""
    found = [Finding.ok("server version", f"SQLite {sqlite3.sqlite_version}, in this process, on file {store.path}")]
    try:
        found += await store.read(_settings)
        found.append(await try_out(steps))
        (known,) = await store.read(
            lambda db: db.execute(
                "select count(*) from queue where exchange = ? and not hidden", (exchange,)
            ).fetchone()
        )
        found.append(Finding.ok("registry", f"readable, {count(known, 'queue')}"))
        found += await store.read(_wrong_types)
        found += await unreadable(steps)
    except PalermoError as error:
        found.append(Finding.problem("publish", str(error), ""))
    try:
        found.append(file_system(store.path, mounts()))
        found.append(space(shutil.disk_usage(os.path.dirname(store.path)).free))
        found += _log_size(store.path)
    except OSError as error:
        found.append(Finding.warning("disk", f"cannot be checked: {error.strerror}", "Check it by hand."))
    found.append(Finding.ok("clock", "one clock for all processes, because they run on this machine"))
    return found


def _settings(db: sqlite3.Connection) -> list[Finding]:
    (mode,) = db.execute("pragma journal_mode").fetchone()
    (synchronous,) = db.execute("pragma synchronous").fetchone()
    journal = (
        Finding.ok("journal", "write-ahead log: readers and writers do not wait for each other")
        if mode == "wal"
        else Finding.problem("journal", f"mode {mode}", "Put the file on a local disk.")
    )
    durability = (
        Finding.ok("durability", "synchronous = FULL: enqueued jobs survive a power cut")
        if synchronous >= 2
        else Finding.warning(
            "durability",
            "jobs do not survive a power cut",
            "The memory broker is for tests. Use a file for jobs that must not be lost.",
        )
    )
    return [journal, durability, Finding.ok("eviction", "none: jobs are kept until they are done or removed")]


#: Tables that may have a row per job. Their readers don't skip invalid rows.
_LARGE = ("job", "later", "log")

#: Permitted values for each column type.
_HOLDS = {"text": ("text",), "integer": ("integer",), "real": ("real", "integer"), "blob": ("blob",)}


def _wrong_types(db: sqlite3.Connection) -> list[Finding]:
    """Values of wrong types, which only another program can have written. Palermo skips their rows."""
    columns = db.execute(
        'select t.name, c.name, lower(c.type), c."notnull" from sqlite_master t join pragma_table_info(t.name) c'
        " where t.type = 'table'"
    ).fetchall()
    found = []
    for table, column, type, required in columns:
        if table in _LARGE or type not in _HOLDS:
            continue
        may = ", ".join(f"'{each}'" for each in (*_HOLDS[type], *(() if required else ("null",))))
        wrong = f"typeof({column}) not in ({may})"
        ((number,),) = db.execute(f"select count(*) from {table} where {wrong}").fetchall()
        if number:
            text = (
                f"{count(number, 'row')} of table {table} {'has' if number == 1 else 'have'} a {column} of a wrong"
                f" type and {'is' if number == 1 else 'are'} ignored"
            )
            remedy = (
                f'Another program has changed the file. Remove them: sqlite3 FILE "delete from {table} where {wrong}"'
            )
            found.append(Finding.warning("records", text, remedy))
    return found


def file_system(path: str, mounted: list[tuple[str, str]]) -> Finding:
    """Whether the file is on a local disk that survives a restart of the machine and the end of its container."""
    kind = ""
    longest = -1
    for place, type in mounted:
        # The last of several mounts at one mount point hides the others.
        if _inside(path, place) and len(place) >= longest:
            longest, kind = len(place), type
    if not kind:
        return Finding.ok("file system", "unknown; it must be a local file system")
    if kind in NETWORK:
        return Finding.warning(
            "file system",
            f"{kind}, a network file system: its locks are unreliable, so the file may be damaged",
            "Put the file on a local disk, or use RabbitMQ.",
        )
    if kind in ("tmpfs", "ramfs"):
        return Finding.warning("file system", f"{kind}: in memory, lost on a restart", "Put the file on a disk.")
    if kind == "overlay":
        return Finding.warning(
            "file system", "the container's own layer: the file is deleted with the container", "Mount a volume for it."
        )
    return Finding.ok("file system", f"{kind}, local")


def space(free: int) -> Finding:
    """Whether the disk has free space."""
    text = f"{free / 1024**2:,.0f} MB free"
    if free < _FULL_BELOW:
        return Finding.problem("disk space", text, "Free disk space, or enqueuing will soon fail.")
    if free < _LOW_BELOW:
        return Finding.warning("disk space", text, "Free disk space soon.")
    return Finding.ok("disk space", text)


def _log_size(path: str) -> list[Finding]:
    wal = f"{path}-wal"
    size = os.path.getsize(wal) if os.path.exists(wal) else 0
    if size < _LONG_WAL:
        return []
    return [
        Finding.warning(
            "journal size",
            f"{size / 1024**2:,.0f} MB of write-ahead log not yet written to the file",
            "A program keeps a read transaction open on the file. Find it (lsof) and end it.",
        )
    ]


def _inside(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")
