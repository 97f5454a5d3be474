"""The mount points of the machine, as the system tells them."""

from pathlib import Path


def mounts() -> list[tuple[str, str]]:
    """Mount points with their types of file system; empty where the system does not tell (macOS)."""
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    parts = [line.split(" ") for line in text.splitlines()]
    return [(_unescaped(part[1]), part[2]) for part in parts if len(part) > 2]


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
