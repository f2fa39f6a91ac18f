"""Sends TCP's first packet in IPv6 fragments through the firewall's rules, in a new network.

Standard library only. Its argument is a file of rules, or empty. Prints as JSON which packets the
server has answered, by port, and then the table of the rules.
"""

import contextlib
import ctypes
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
SERVER, CLIENT = "fd00::1", "fd00::2"
MAC = {SERVER: "02:00:00:00:00:01", CLIENT: "02:00:00:00:00:02"}
TCP, FRAGMENT, OPTIONS, UDP = 6, 44, 60, 17
SYN, ACK = 2, 16
CLOSED, OPEN = 29555, 8080
DRAWN = 300
PADDING = bytes([1, 4, 0, 0, 0, 0])
UNKNOWN = bytes([0x1E, 12]) + bytes(12)  # an option that is ignored by hosts that do not know it


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(port: int, source: int, payload: bytes, flags: int = SYN) -> bytes:
    """Return a TCP segment with a valid checksum."""
    source_address, address = (socket.inet_pton(socket.AF_INET6, a) for a in (CLIENT, SERVER))
    length = 20 + len(payload)
    pseudo = source_address + address + struct.pack("!I3xB", length, TCP)

    def header(check: int) -> bytes:
        return struct.pack("!HHIIBBHHH", source, port, 1, 0, 5 << 4, flags, 65535, check, 0)

    return header(checksum(pseudo + header(0) + payload)) + payload


def packet(next_header: int, body: bytes) -> bytes:
    mac = b"".join(bytes.fromhex(MAC[a].replace(":", "")) for a in (SERVER, CLIENT))
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, a) for a in (CLIENT, SERVER))
    header = struct.pack("!IHBB", 6 << 28, len(body), next_header, 64)
    return mac + b"\x86\xdd" + header + addresses + body


def fragments(chain: bytes, first: int, cuts: list[int], number: int) -> list[bytes]:
    """Return the fragments of the payload of an IPv6 header, cut at multiples of 8 bytes.

    Args:
        first: kind of the first header of `chain`.
    """
    ends = [*cuts, len(chain)]
    sent = []
    for number_of_cut, end in enumerate(ends):
        start = [0, *cuts][number_of_cut]
        more = int(end < len(chain))
        header = struct.pack("!BBHI", first, 0, start | more, number)
        sent.append(packet(FRAGMENT, header + chain[start:end]))
    return sent


def overlapping(port: int, source: int, number: int) -> list[bytes]:
    """Return fragments with harmless flags that a later fragment overwrites."""
    harmless, real = (segment(port, source, bytes(12), flags) for flags in (ACK, SYN))
    head = [struct.pack("!BBHI", TCP, 0, offset | more, number) for offset, more in
            ((0, 1), (8, 1), (24, 0))]  # fmt: skip
    return [packet(FRAGMENT, head[0] + harmless[:24]), packet(FRAGMENT, head[1] + real[8:24]),
            packet(FRAGMENT, head[2] + real[24:])]  # fmt: skip


def ways(port: int, base: int) -> dict[str, list[bytes]]:
    """Return ways to send a connection's first packet, the nth from the port `base` + n."""
    options = bytes([TCP, 1]) + UNKNOWN  # 16 bytes, then TCP
    two = bytes([OPTIONS, 0, *PADDING, TCP, 0, *PADDING])
    nested = struct.pack("!BBHI", TCP, 0, 0, base + 10)

    def syn(number: int) -> bytes:
        return segment(port, base + number, bytes(12))

    return {
        "whole": [packet(TCP, syn(0))],
        "whole behind options": [packet(OPTIONS, options + syn(1))],
        "atomic fragment": fragments(syn(2), TCP, [], base + 2),
        "header in the first": fragments(syn(3), TCP, [24], base + 3),
        "header in the first, which comes last": fragments(syn(4), TCP, [24], base + 4)[::-1],
        "without flags": fragments(syn(5), TCP, [8], base + 5),
        "without the header": fragments(options + syn(6), OPTIONS, [16], base + 6),
        "options that end in the second": fragments(options + syn(7), OPTIONS, [8], base + 7),
        "options of which the second has some": fragments(two + syn(8), OPTIONS, [8], base + 8),
        "overlapping": overlapping(port, base + 9, base + 9),
        "a fragment in fragments": fragments(nested + syn(10), FRAGMENT, [8], base + 11),
    }


def drawn(port: int, source: int, draw: random.Random) -> list[bytes]:
    """Return a random chain of headers, cut anywhere, with fragments in any order."""
    headers: list[tuple[int, bytes]] = []
    for _ in range(draw.randrange(4)):
        if draw.random() < 0.2:
            headers.append((FRAGMENT, struct.pack("!xBHI", 0, 0, draw.randrange(1 << 32))))
        else:
            option = draw.choice([PADDING, UNKNOWN])
            headers.append((OPTIONS, bytes([0, len(option) // 8]) + option))
    kinds = [kind for kind, _ in headers] + [TCP]
    chain = b"".join(
        bytes([following]) + header[1:]
        for (_, header), following in zip(headers, kinds[1:], strict=True)
    ) + segment(port, source, bytes(12))  # fmt: skip
    places = range(8, len(chain), 8)
    cuts = sorted(draw.sample(places, draw.randrange(min(4, len(places)) + 1)))
    sent = fragments(chain, kinds[0], cuts, draw.randrange(1 << 32))
    draw.shuffle(sent)
    return sent


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def be_client(ready: int, go: int) -> None:
    """Send all packets from another network; return the answered ones."""
    os.write(ready, b"x")
    os.read(go, 1)
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
    link.bind(("c0", 0x86DD))
    link.settimeout(0.5)
    names = {}
    for port, base in ((CLOSED, 20000), (OPEN, 21000)):
        draw = random.Random(port)
        more = {f"drawn {n}": drawn(port, base + 11 + n, draw) for n in range(DRAWN)}
        for number, (name, packets) in enumerate((ways(port, base) | more).items()):
            names[port, base + number] = name
            for data in packets:
                link.send(data)
    answered: dict[int, list[str]] = {CLOSED: [], OPEN: []}
    deadline = time.monotonic() + 3
    with contextlib.suppress(TimeoutError):
        while time.monotonic() < deadline:
            data = link.recv(2048)
            port, source = struct.unpack_from("!HH", data.ljust(60, b"\0"), 54)
            name = names.get((port, source))
            if data[20] == TCP and data[67] & (SYN | ACK) == SYN | ACK and name:
                answered[port].append(name)
    print(json.dumps({port: sorted({*heard}) for port, heard in answered.items()}), flush=True)


def main() -> None:
    rules = sys.argv[1]
    run("ip", "link", "set", "lo", "up")
    (ready, told), (wait, go) = os.pipe(), os.pipe()
    client = os.fork()
    if client == 0:
        try:
            assert ctypes.CDLL(None).unshare(NEW_NETWORK) == 0
            be_client(told, wait)
        finally:
            os._exit(0)
    os.read(ready, 1)
    run("ip", "link", "add", "s0", "type", "veth", "peer", "name", "c0", "netns", str(client))
    inside = ("nsenter", f"--net=/proc/{client}/ns/net")
    for where, name, address in (((), "s0", SERVER), (inside, "c0", CLIENT)):
        run(*where, "ip", "link", "set", name, "address", MAC[address], "up")
        run(*where, "ip", "address", "add", f"{address}/64", "dev", name, "nodad")
    servers = [
        socket.create_server(("::", port), family=socket.AF_INET6) for port in (CLOSED, OPEN)
    ]
    if rules:
        run("nft", "--file", rules)
    os.write(go, b"x")
    os.waitpid(client, 0)
    for server in servers:
        server.close()
    if rules:
        print(run("nft", "--json", "list", "table", "inet", "ftcluster"))


if __name__ == "__main__":
    main()
