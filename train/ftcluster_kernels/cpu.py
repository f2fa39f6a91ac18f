"""The instruction sets of this CPU, as the kernel reports them in /proc/cpuinfo."""

from pathlib import Path


def cpuinfo_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo, or "" if it has no such field."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.partition("\n\n")[0].splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return ""
