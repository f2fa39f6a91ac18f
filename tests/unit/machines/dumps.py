"""Writes the facts of machines from public dumps: `python -m tests.unit.machines.dumps DUMP ...`.

A dump is a tar of /sys and /proc, an XML file of hwloc, or a text with the output of `numactl -H`
and `lscpu`. A line `from: ADDRESS` of a text says where it is public; of others the option --from
does. Only facts are kept: which CPUs are cores, sockets and NUMA nodes, sizes, distances.
"""

import argparse
import re
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tests.unit.conftest  # noqa: F401 - where the collection's files are
from ftcluster_common.protocol.cpu_list import format_cpus, parse_cpus
from tests.unit.machines.machine import Machine, Node, machine

WANTED = re.compile(
    r"sys/devices/system/(cpu/(online|cpu\d+/topology/(physical_package_id|core_siblings(_list)?"
    r"|thread_siblings(_list)?))|node/(online|node\d+/(cpulist|cpumap|distance|meminfo"
    r"|access0/initiators/read_bandwidth)))$|proc/(cpuinfo|meminfo|self/(cpuset|status))$"
    r"|(cpuset\.)?(effective_)?(cpus|mems)(\.effective)?$"
)
DRIVER = re.compile(r"drivers/([\w+-]+)$")


def of_tar(path: Path, source: str) -> Machine | None:
    """Return the machine of a tar with /sys and /proc in any folder."""
    files, links = {}, {}
    with tarfile.open(path) as tar:
        for member in tar:
            name = member.name.partition("/")[2] if not member.name.startswith("./") else ""
            name = name or member.name.removeprefix("./")
            if member.issym():
                links[name] = member.linkname
            elif member.isfile() and WANTED.search(name):
                content = tar.extractfile(member)
                text = content.read().decode(errors="replace") if content else ""
                files[name] = text.replace("\0", "")
    return of_files(path.name.partition(".tar")[0], source, files, links)


def of_files(
    name: str, source: str, files: dict[str, str], links: dict[str, str]
) -> Machine | None:
    """Return the machine of these files, or None if they have no CPUs."""
    cpu, node = "sys/devices/system/cpu/", "sys/devices/system/node/"
    numbers = {int(found[1]) for key in files if (found := re.search(r"/cpu(\d+)/topology/", key))}
    if online := files.get(cpu + "online", "").strip():
        numbers &= set(parse_cpus(online))
    if not numbers:
        return None

    def siblings(one: int, kind: str) -> tuple[int, ...]:
        base = f"{cpu}cpu{one}/topology/{kind}_siblings"
        text = files.get(base + "_list", "").strip()
        found = set(parse_cpus(text)) if text else bits(files.get(base, ""))
        return tuple(sorted(found & numbers)) or (one,)

    nodes = []
    for one in sorted({int(f[1]) for key in files if (f := re.search(r"/node(\d+)/", key))}):
        base = f"{node}node{one}/"
        text = files.get(base + "cpulist", "").strip()
        cpus = set(parse_cpus(text)) if text else bits(files.get(base + "cpumap", ""))
        size = re.search(r"MemTotal:\s*(\d+)", files.get(base + "meminfo", ""))
        nodes.append(
            Node(one, format_cpus(cpus), int(size[1]) if size else 0,
                 " ".join(files.get(base + "distance", "").split()),
                 int(files.get(base + "access0/initiators/read_bandwidth", "0").strip() or 0))
        )  # fmt: skip
    own = files.get("proc/self/cpuset", "").strip().rstrip("/")

    def cpuset(what: str, among: set[int]) -> str:
        ends = (f"/{what}", f"/cpuset.{what}", f"/cpuset.{what}.effective")
        text = next((files[key] for key in files for end in ends if key.endswith(own + end)), "")
        found = set(parse_cpus(text.strip())) & among
        return format_cpus(found) if found and found != among else ""

    model = re.search(r"^(?:model name|cpu model|cpu)\s*:\s*(.*)", files.get("proc/cpuinfo", ""),
                      re.MULTILINE)  # fmt: skip
    total = re.search(r"MemTotal:\s*(\d+)", files.get("proc/meminfo", ""))
    package = {
        one: files.get(f"{cpu}cpu{one}/topology/physical_package_id", "").strip() for one in numbers
    }
    return machine(
        name, source, model[1].strip() if model else "", package,
        [siblings(one, "thread") for one in numbers], nodes,
        kilobytes=int(total[1]) if total else 0,
        allowed=cpuset("cpus", numbers), mems=cpuset("mems", {one.number for one in nodes}),
        nics=drivers(links),
    )  # fmt: skip


def bits(mask: str) -> set[int]:
    """Return the bits set in a mask of 32-bit words, such as 00000000,0000000f or 0x1,,0xff."""
    words = [word.strip().removeprefix("0x") or "0" for word in reversed(mask.split(","))]
    value = sum(int(word, 16) << 32 * at for at, word in enumerate(words))
    return {at for at in range(value.bit_length()) if value >> at & 1}


def drivers(links: dict[str, str]) -> dict[str, str]:
    """Return the driver of each network interface with hardware."""
    found = {}
    for name, target in links.items():
        if name.startswith("sys/class/net/") and "/virtual/" not in target:
            device = "sys/" + target.partition("devices/")[1] + target.partition("devices/")[2]
            driver = links.get(device.partition("/net/")[0] + "/driver", "")
            if match := DRIVER.search(driver):
                found[Path(name).name] = match[1]
    return dict(sorted(found.items()))


def of_xml(path: Path, source: str) -> Machine | None:
    """Return the machine of an XML file of hwloc, versions 1 to 3."""
    root = ElementTree.parse(path).getroot()
    package, cores, nodes, infos = {}, [], {}, {}

    def walk(element: Any, inside: str) -> None:
        kind = element.get("type")
        if kind in ("Package", "Socket"):
            inside = element.get("os_index") or element.get("gp_index") or inside
        if kind == "Core":
            cores.append(tuple(int(pu.get("os_index")) for pu in element.iter("object")
                               if pu.get("type") == "PU"))  # fmt: skip
        if kind == "PU":
            package[int(element.get("os_index"))] = inside
        if kind == "NUMANode":
            nodes[int(element.get("os_index"))] = (
                bits(element.get("cpuset") or "0"), int(element.get("local_memory") or 0) // 1024,
            )  # fmt: skip
        infos.update({one.get("name"): one.get("value") for one in element.findall("info")})
        for child in element.findall("object"):
            walk(child, inside)

    walk(root, "0")
    top = root.find("object")
    usable = bits((top.get("allowed_cpuset") if top is not None else None) or "0") & set(package)
    mems = bits((top.get("allowed_nodeset") if top is not None else None) or "0") & set(nodes)
    if not package or not all(size for _, size in nodes.values()):
        return None
    far = xml_distances(root)
    # nodes with only memory are beside the cores of other nodes
    seen: set[int] = set()
    own = {}
    for number, (cpus, _) in sorted(nodes.items()):
        own[number] = cpus - seen
        seen |= cpus
    return machine(
        path.stem, source, infos.get("CPUModel", ""), package,
        cores or [(cpu,) for cpu in package],
        [Node(number, format_cpus(own[number] & set(package)), size, far.get(number, ""))
         for number, (_, size) in nodes.items()],
        allowed=format_cpus(usable) if usable and usable != set(package) else "",
        mems=format_cpus(mems) if mems and mems != set(nodes) else "",
    )  # fmt: skip


def xml_distances(root: Any) -> dict[int, str]:
    """Return the row of each node in the latency matrix."""
    for matrix in root.findall("distances2"):
        if matrix.get("type") == "NUMANode" and "Bandwidth" not in (matrix.get("name") or ""):
            numbers = [int(n) for one in matrix.findall("indexes") for n in one.text.split()]
            values = [v for one in matrix.findall("u64values") for v in one.text.split()]
            size = len(numbers)
            if len(values) == size * size:
                return {
                    number: " ".join(values[at * size : at * size + size])
                    for at, number in enumerate(numbers)
                }
    return {}


def of_text(path: Path) -> Machine | None:
    """Return the machine of the output of numactl -H, of lscpu, or of both."""
    text = path.read_text()

    def says(name: str) -> str:
        found = re.search(rf"^\s*{re.escape(name)}:\s*(.*?)\s*$", text, re.MULTILINE)
        return found[1] if found else ""

    def each(pattern: str) -> dict[int, str]:
        return {int(n): value for n, value in re.findall(pattern, text, re.MULTILINE)}

    cpus_of = {
        node: format_cpus(map(int, cpus.split()))
        for node, cpus in each(r"^node (\d+) cpus:(.*)$").items()
    } | each(r"NUMA node(\d+) CPU\(s\):[ \t]*(.*)$")
    sizes = {node: int(mb) * 1024 for node, mb in each(r"^node (\d+) size: (\d+) MB").items()}
    lines = each(r"^\s*(\d+):((?:\s+\d+)+)\s*$")
    far = {node: " ".join(line.split()) for node, line in lines.items()}
    numbers = sorted(cpu for cpus in cpus_of.values() for cpu in parse_cpus(cpus))
    threads = int(says("Thread(s) per core") or 1)
    sockets = int(says("Socket(s)") or 1)
    # on x86, Linux numbers all first hardware threads before the second ones
    firsts = len(numbers) // threads
    siblings = [tuple(cpu + firsts * at for at in range(threads)) for cpu in range(firsts)]
    with_cpus = [node for node, cpus in sorted(cpus_of.items()) if cpus]
    package = {}
    for node, cpus in cpus_of.items():
        for cpu in parse_cpus(cpus):
            if len(with_cpus) >= sockets:
                package[cpu] = with_cpus.index(node) * sockets // len(with_cpus)
            else:
                package[cpu] = cpu % firsts * sockets // firsts
    total = int(says("MemTotal").partition(" ")[0] or 0)
    even = total // max(1, len(with_cpus))
    return machine(
        path.stem, says("from"), says("Model name"), package, siblings,
        [Node(node, cpus, sizes.get(node, even if cpus else 0), far.get(node, ""))
         for node, cpus in cpus_of.items()],
        kilobytes=total,
    )  # fmt: skip


def machines(paths: list[Path], source: str) -> Iterator[Machine]:
    """Yield the machines of dumps; some dumps have none."""
    for path in paths:
        found: Machine | None
        if ".tar" in path.name:
            found = of_tar(path, source.replace("NAME", path.name))
        elif path.suffix == ".xml":
            found = of_xml(path, source.replace("NAME", path.name))
        else:
            found = of_text(path)
        if found:
            yield found


def main() -> None:
    """Print a line for each machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", default="NAME", help="with NAME for the file's")
    parser.add_argument("dumps", nargs="+", type=Path)
    options = parser.parse_args()
    for found in machines(options.dumps, options.source):
        print(found.line())


if __name__ == "__main__":
    main()
