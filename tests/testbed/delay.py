"""A slow cable: frames that arrive later. Not all kernels have netem.

    python delay.py plain INTERFACE             have it send frames that are whole, with checksums
    python delay.py relay SECONDS ONE OTHER     carry the frames of two interfaces to each other

Imports only the standard library, because it is started in other network namespaces.
"""

import contextlib
import ctypes
import fcntl
import select
import socket
import struct
import sys
import time
from collections import deque

# Linux, include/uapi/linux: if_ether.h, if_packet.h, sockios.h, ethtool.h
ETH_P_ALL, PACKET_OUTGOING = 3, 4
SIOCETHTOOL, ETHTOOL_STXCSUM, ETHTOOL_STSO = 0x8946, 0x17, 0x1F
# Linux, include/uapi/asm-generic/socket.h. At 1 Gbit/s the buffers hold the frames of half a
# second: while other processes use the cores, frames must be late and not lost
SO_SNDBUFFORCE, SO_RCVBUFFORCE, BUFFER_BYTES = 32, 33, 64 << 20


def plain(interface: str) -> None:
    """Disable offloads, so that each frame is complete and a socket can forward it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in (ETHTOOL_STSO, ETHTOOL_STXCSUM):
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def relay(seconds: float, *interfaces: str) -> None:
    """Forward frames until an interface disappears."""
    ends = []
    for interface in interfaces:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        for buffer in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            end.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
        end.bind((interface, 0))
        end.setblocking(False)
        ends.append(end)
    to = dict(zip(ends, reversed(ends), strict=True))
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(ends, [], [], left)[0]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    frame, origin = end.recvfrom(1 << 16)
                    if origin[2] != PACKET_OUTGOING:
                        waiting.append((time.monotonic() + seconds, to[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, frame = waiting.popleft()
            # a full queue drops frames, like a real link
            with contextlib.suppress(BlockingIOError):
                end.send(frame)


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        plain(sys.argv[2])
    else:
        relay(float(sys.argv[2]), *sys.argv[3:])
