"""Forbids the system calls that docker forbids in ordinary containers, then executes a program.

python3 tests/seccomp.py PROGRAM ARGUMENTS ...

x86-64 only; without new privileges, or as root. Standard library only.
"""

import ctypes
import errno
import os
import struct
import sys

# system calls of arch/x86/entry/syscalls/syscall_64.tbl that moby's profiles/seccomp/default.json
# does not allow
FORBIDDEN = {
    "pivot_root": 155, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
    "swapon": 167, "swapoff": 168, "reboot": 169, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "kexec_load": 246,
    "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272,
    "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304,
    "setns": 308, "finit_module": 313, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
    "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
}  # fmt: skip
CLONE, CLONE3 = 56, 435
NAMESPACES = 0x7E020000  # all CLONE_NEW flags of clone
# include/uapi/linux/bpf_common.h, seccomp.h, prctl.h
LOAD, EQUAL, ANY, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16  # offsets in struct seccomp_data
ALLOW, ERROR = 0x7FFF0000, 0x00050000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2


def program() -> bytes:
    """Return the filter as consecutive struct sock_filter."""
    code = [(LOAD, 0, 0, NUMBER)]
    for number in FORBIDDEN.values():
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERROR | errno.EPERM)]
    code += [
        (EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ERROR | errno.ENOSYS),  # libc then uses clone
        (EQUAL, 0, 3, CLONE), (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY, 0, 1, NAMESPACES), (RETURN, 0, 0, ERROR | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    return b"".join(struct.pack("HBBI", *one) for one in code)


def forbid() -> None:
    """Install the filter for this process and all processes that it starts.

    Raises:
        OSError: the kernel does not take it.
    """
    text = program()
    buffer = ctypes.create_string_buffer(text, len(text))
    filters = struct.pack("HxxxxxxP", len(text) // 8, ctypes.addressof(buffer))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters):
        raise OSError(ctypes.get_errno(), "seccomp filter")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
