"""A file system over /dev/fuse that claims any owner that a test wants.

It represents a file system that an ordinary user has mounted with fusermount and the option
allow_other. include/uapi/linux/fuse.h defines the protocol; this server supports what lookup,
reading and listing need.
"""

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
DETACH = 2  # flag of umount2
IN, OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
INIT_ANSWER = struct.pack("<4I2H2I2H8I", 7, 31, 4096, 0, 1, 1, 4096, 1, 1, 0, *[0] * 8)
LOOKUP, FORGET, GETATTR, SETATTR, READLINK = 1, 2, 3, 4, 5
OPEN, READ, RELEASE, INIT, OPENDIR, READDIR, RELEASEDIR = 14, 15, 18, 26, 27, 28, 29
INTERRUPT, BATCH_FORGET = 36, 42  # requests without a response
ROOT_NODE = 1


@dataclass
class Node:
    """An entry of the file system under one name.

    Attributes:
        mode: kind and permissions.
        uid: owner that it claims.
        text: contents of a file, or target of a link.
        names: contents of a folder.
    """

    mode: int
    uid: int = 0
    text: bytes = b""
    names: Mapping[str, "Node"] = field(default_factory=dict)


def folder(names: Mapping[str, Node], uid: int = 0) -> Node:
    return Node(stat.S_IFDIR | 0o755, uid, names=names)


def file(text: bytes, uid: int = 0) -> Node:
    return Node(stat.S_IFREG | 0o644, uid, text)


def link(target: Path, uid: int = 0) -> Node:
    return Node(stat.S_IFLNK | 0o777, uid, os.fsencode(target))


class Server:
    """Answers the kernel's requests until the file system is unmounted."""

    def __init__(self, device: int, top: Node) -> None:
        self.device = device
        self.nodes = {0: top, ROOT_NODE: top}  # the first request is about no node

    def serve(self) -> None:
        with contextlib.ExitStack() as stack:
            # in any case; otherwise a process that waits for a response would wait forever
            stack.callback(os.close, self.device)
            # ENODEV: the file system is unmounted
            stack.enter_context(contextlib.suppress(OSError))
            while True:
                request = os.read(self.device, 1 << 16)
                _, code, unique, node, *_ = IN.unpack_from(request)
                if code in (FORGET, BATCH_FORGET, INTERRUPT):
                    continue
                try:
                    answer, error = self.answer(code, self.nodes[node], request[IN.size :]), 0
                except OSError as raised:
                    answer, error = b"", raised.errno or errno.EIO
                os.write(self.device, OUT.pack(OUT.size + len(answer), -error, unique) + answer)

    def answer(self, code: int, node: Node, body: bytes) -> bytes:
        if code == INIT:
            return INIT_ANSWER
        if code == LOOKUP:
            name = os.fsdecode(body.rstrip(b"\0"))
            if name not in node.names:
                raise FileNotFoundError(errno.ENOENT, name)
            inner = node.names[name]
            number = id(inner)
            self.nodes[number] = inner
            return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + self.attributes(inner)
        if code in (GETATTR, SETATTR):
            return struct.pack("<Q2I", 0, 0, 0) + self.attributes(node)
        if code == READLINK:
            return node.text
        if code in (OPEN, OPENDIR):
            return struct.pack("<Q2I", 0, 0, 0)
        if code in (RELEASE, RELEASEDIR):
            return b""
        if code in (READ, READDIR):
            _, offset, size = struct.unpack_from("<QQI", body)
            return (node.text if code == READ else self.listing(node))[offset : offset + size]
        raise OSError(errno.ENOSYS, "not of this file system")

    def listing(self, node: Node) -> bytes:
        entries = b""
        for name in map(os.fsencode, node.names):
            size = 24 + -(-len(name) // 8) * 8
            entry = struct.pack("<2Q2I", 1, len(entries) + size, len(name), 0) + name
            entries += entry.ljust(size, b"\0")
        return entries

    def attributes(self, node: Node) -> bytes:
        size = len(node.text)
        return ATTRIBUTES.pack(
            id(node), size, 1, 0, 0, 0, 0, 0, 0, node.mode, 1, node.uid, node.uid, 0, 4096, 0
        )


def mount(device: int, place: Path, user: int, mode: int = stat.S_IFDIR) -> None:
    """Mount the file system of a program at /dev/fuse, as fusermount does for a user."""
    options = f"fd={device},rootmode={mode:o},user_id={user},group_id={user},allow_other"
    if LIBC.mount(b"test", os.fsencode(place), b"fuse.test", 0, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


@contextlib.contextmanager
def mounted(place: Path, top: Node, user: int) -> Iterator[None]:
    """Mount a user's file system on a folder; unmount it at the end."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    server = threading.Thread(target=Server(device, top).serve, daemon=True)
    try:
        mount(device, place, user, stat.S_IFMT(top.mode))
        server.start()
        yield
    finally:
        while LIBC.umount2(os.fsencode(place), DETACH) == 0:
            pass
        if server.ident is None:
            os.close(device)
        else:
            server.join(5)
