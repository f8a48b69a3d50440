"""Runs a command as its parent, and ends all that came of it: `python -I -S guard.py STATUS WORD...`.

What leaves the group of the command, as the workers of torchrun, a daemon or a second fork do, becomes a child of this
process when its parent is gone, so none of it can hide. The standard input is the stage's: `T` asks all to end, and its
end ends all, since the stage is done with the command, or gone, even by SIGKILL. The file descriptor STATUS is told
`E13`, an error number, where the command cannot be started, and `R0`, its exit code, when nothing of it is left. It is
no part of Ratchet for Python: it begins in 20 ms, and knows no Prefect and no torch.
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 0.3
"""What the command leaves running when it ends by itself has so long to end too, as a tracker of shared memory does."""


def main() -> None:
    status, words = int(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # not ignored: that the command would inherit
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(status, False)
    command = _start(words, status, libc)
    for output in (1, 2):
        os.close(output)  # it ends when the command's is closed
    code = None
    while code is None:
        ready, _, _ = select.select([0, woken], [], [])
        asked = os.read(0, 1) if 0 in ready else b"-"
        if asked == b"T":
            _signal_all(signal.SIGTERM)
        if woken in ready:
            os.read(woken, 4096)
        code = _reap().get(command)
        if not asked:
            _end_all()
            return
    until = time.monotonic() + GRACE_SECONDS
    while _descendants() and time.monotonic() < until and not select.select([0], [], [], 0.02)[0]:
        _reap()
    _end_all()
    os.write(status, b"R%d\n" % code)


def _start(words: list[str], status: int, libc: ctypes.CDLL) -> int:
    parent = os.getpid()
    if command := os.fork():
        return command
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # where the guard itself is killed
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python itself
            signal.signal(ignored, signal.SIG_DFL)
        os.execvp(words[0], words)
    except OSError as error:
        os.write(status, b"E%d\n" % (error.errno or 0))
    os._exit(127)


def _descendants() -> set[int]:
    """All that descend from this process; of one whose parent is gone this is the parent."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            pass  # it is over
    below, descendants = {os.getpid()}, set[int]()
    while below := {process for process, parent in parents.items() if parent in below and process not in descendants}:
        descendants |= below
    return descendants


def _signal_all(number: int) -> set[int]:
    """Sends it to all; returns those that it reached."""
    reached = set()
    for process in _descendants():
        try:
            os.kill(process, number)
            reached.add(process)
        except OSError:
            pass  # it is over, or became another user's
    return reached


def _reap() -> dict[int, int]:
    """The exit codes of the children that ended."""
    codes = {}
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass
    return codes


def _end_all() -> None:
    while _signal_all(signal.SIGKILL):
        _reap()
        time.sleep(0.005)


if __name__ == "__main__":
    main()
