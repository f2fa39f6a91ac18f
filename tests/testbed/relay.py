"""A delay line between a host's cable and the switch, for a kernel without netem.

    relay.py CABLE TAP SECONDS

Every frame that comes in at one end goes out at the other SECONDS later. Frames keep their virtio
header, so that segmentation and checksum offload pass through, and a rate of Gbit/s is reached.
`shape.py` starts it, in the switch's network namespace; it runs until it is killed.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass, field

# From linux/if_tun.h, linux/if_packet.h, linux/if_ether.h and asm/socket.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
OFFLOADS = 0x01 | 0x02 | 0x04 | 0x08  # checksum, TSO4, TSO6, ECN
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE = 33
ETH_P_ALL = 3

LARGEST_FRAME = 70_000  # bytes; offloaded segments are larger than any MTU
FRAMES_A_TURN = 256


@dataclass
class Line:
    """One direction: where frames come from, where they go, and those on their way."""

    source: int
    sink: int
    frames: collections.deque[tuple[float, bytes]] = field(default_factory=collections.deque)


def open_tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(fd, TUNSETOFFLOAD, OFFLOADS)
    return fd


def open_cable(name: str) -> socket.socket:
    cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    cable.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    cable.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    cable.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    cable.bind((name, ETH_P_ALL))  # Python swaps its bytes
    cable.setblocking(False)
    return cable


def main(cable_name: str, tap_name: str, delay: float) -> None:
    tap, cable = open_tap(tap_name), open_cable(cable_name)
    lines = [Line(cable.fileno(), tap), Line(tap, cable.fileno())]
    while True:
        due = min((line.frames[0][0] for line in lines if line.frames), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        ready = select.select([line.source for line in lines], [], [], wait)[0]
        now = time.monotonic()
        for line in lines:
            if line.source in ready:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(FRAMES_A_TURN):
                        line.frames.append((now + delay, os.read(line.source, LARGEST_FRAME)))
            while line.frames and line.frames[0][0] <= now:
                with contextlib.suppress(OSError):  # a full queue drops, as a switch does
                    os.write(line.sink, line.frames[0][1])
                line.frames.popleft()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
