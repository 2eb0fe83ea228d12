"""Program: a process whose command line and environment cannot be read, since it holds the lock of its memory.

``unshare -Urm python holding.py DEVICE FILE``, with a device of FUSE. Says "holding" and its process id when that is
about to be so. It maps a file while one of its pages is being read, and the file's server does not answer reads. That
ends when its process group is killed, and in any case after two minutes: it would hold up whoever lists processes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
import time

_GETATTR, _OPEN, _READ, _INIT = 3, 14, 15, 26
#: Requests that have no answer: forget, interrupt and forget many.
_SILENT = {2, 36, 42}
_DIRECT, _KEEP_CACHE = 1, 2
_ENOSYS = 38
#: Seconds until it ends by itself.
_LONGEST = 120


def serve(device: int, tell: int) -> None:
    """Answer everything but reads, of which the pipe is told. Only the first open file is cached."""
    signal.alarm(_LONGEST)
    opened = 0
    while True:
        request = os.read(device, 1 << 17)
        opcode, unique = struct.unpack_from("=4xIQ", request)
        error, answer = 0, b""
        if opcode == _INIT:
            answer = struct.pack("=IIIIHHIIHH32x", 7, 31, 0, 0, 16, 12, 65536, 1, 16, 0)
        elif opcode == _GETATTR:
            answer = struct.pack(
                "=QII6Q10I", 1000, 0, 0, 1, 1 << 16, *[0] * 4, *[0] * 3, 0o100666, 1, *[0] * 3, 4096, 0
            )
        elif opcode == _OPEN:
            opened += 1
            answer = struct.pack("=QII", opened, _KEEP_CACHE | (_DIRECT if opened > 1 else 0), 0)
        elif opcode == _READ:
            os.write(tell, b"x")
            continue
        elif opcode in _SILENT:
            continue
        else:
            error = -_ENOSYS
        os.write(device, struct.pack("=IiQ", 16 + len(answer), error, unique) + answer)


def hold(path: str, told: int) -> None:
    """Map the file while a page of it is being read."""
    first = os.open(path, os.O_RDONLY)
    if not os.fork():
        os.pread(first, 1, 0)
        return
    os.read(told, 1)
    second = os.open(path, os.O_RDONLY)
    os.write(1, f"holding {os.getpid()}\n".encode())
    mmap.mmap(second, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)


def main(device_path: str, path: str) -> None:
    """Mount, serve and hold, in a process each."""
    device = os.open(device_path, os.O_RDWR)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o666))
    options = f"fd={device},rootmode=100666,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"h", path.encode(), b"fuse", 2 | 4, options):
        raise OSError(ctypes.get_errno(), "the file cannot be mounted")
    told, tell = os.pipe()
    if not os.fork():
        serve(device, tell)
    os.close(device)
    if not os.fork():
        hold(path, told)
        return
    time.sleep(_LONGEST)


if __name__ == "__main__":
    main(*sys.argv[1:])
