"""The pictures of the README, each of a real run.

python -m tests.docs.pictures answer      draws the figure that answers of the kept quick study (tests/docs/quoted)
python -m tests.docs.pictures going-on    runs the README's study, kills it by SIGKILL, runs it again, and draws
                                          both terminals as they stood
"""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.conftest import REPOSITORY
from tests.docs.pages import PAGES, blocks_of
from tests.docs.quotes import document_of

PICTURES = REPOSITORY / "docs" / "pictures"
COLUMNS = 84
PROGRESS = re.compile(rb"[4-9]/10 folds")
COMMAND = "ratchet run folds.py"
_COLOURS = ["000000", "b02424", "1e7832", "966e00", "1e50aa", "822882", "007882", "787878"]
LIGHT = TerminalTheme((255, 255, 255), (40, 40, 40), [tuple(bytes.fromhex(colour)) for colour in _COLOURS])
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; }}
{styles}</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#c8c8c8"/>
<g transform="translate({terminal_x}, 14)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def answer() -> str:
    """The SVG of the figure that answers."""
    return document_of("robustness-quick").answer.svg + "\n"


def going_on() -> str:
    """The SVG of a study that is killed and goes on."""
    (code,) = [block.text for block in blocks_of("README.md", PAGES["README.md"]) if block.language == "python"]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "folds.py").write_text(code)
        for kill in (True, False):
            console.print(Text(f"$ {COMMAND}", style="bold"))
            console.print(*(Text.from_ansi(line.replace(f"{folder}/", "")) for line in _screen(folder, kill)), sep="\n")
            if kill:
                console.print(Text("Killed", "red"), Text("(by kill -9)\n", "bright_black"))
    svg = console.export_svg(title="", theme=LIGHT, code_format=SVG, unique_id="ratchet")
    return re.sub(r' clip-path="[^"]*"|<clipPath.*?</clipPath>', "", svg, flags=re.DOTALL)


def _screen(folder: str, kill: bool) -> list[str]:
    """The lines that a terminal shows when the command has ended, with their colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    study = subprocess.Popen(
        COMMAND.split(), cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=os.environ | {"PATH": path, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    try:
        while more := os.read(ours, 65536):
            said += more
            if kill and PROGRESS.search(said):
                study.send_signal(signal.SIGKILL)
    except OSError:  # nobody writes any more
        pass
    lines = _lines(said.decode())
    assert study.wait() == (-signal.SIGKILL if kill else 0), lines
    return lines


def _lines(said: str) -> list[str]:
    """Follows what a terminal is told: go to the line's beginning, go up, clear the line, go to the next."""
    lines, at = [""], 0
    for piece in re.split(r"(\r|\n|\x1b\[\d*[AK]|\x1b\[\?25[lh])", said):
        if piece == "\n":
            at += 1
            lines += [""] if at == len(lines) else []
        elif piece.endswith("A") and piece.startswith("\x1b"):
            at -= int(piece[2:-1] or 1)
        elif piece.startswith("\x1b[") and piece.endswith("K"):
            lines[at] = ""
        elif piece != "\r" and not piece.startswith("\x1b[?25"):
            lines[at] += piece
    return [line for line in lines if line.strip()]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        (PICTURES / f"{name}.svg").write_text({"answer": answer, "going-on": going_on}[name]())
