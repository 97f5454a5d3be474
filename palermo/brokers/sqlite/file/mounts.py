"""The machine's mount points, as the system reports them."""

from pathlib import Path


def mounts() -> list[tuple[str, str]]:
    """Mount points with their file system types; empty where the system doesn't report them (macOS)."""
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    parts = [line.split(" ") for line in text.splitlines()]
    return [(_unescaped(part[1]), part[2]) for part in parts if len(part) > 2]


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
