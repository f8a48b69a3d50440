"""Files that others made: no pipe is waited for, no device read to its end, and no small file becomes a large value."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest
import yaml

from storage import durable, reading
from storage.errors import BadInput


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A read that waits is ended, also inside the kernel, with the error that this test then shows."""

    def late(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_is_no_regular_file_is_refused_at_once_by_name(tmp_path, kind):
    file = tmp_path / "COMPLETE.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(file))
    for read in (durable.read_json, durable.sha256_file, reading.read_yaml):
        with pytest.raises(ValueError, match=r"COMPLETE\.json is a pipe, a socket or a device"):
            read(file)


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, "[" * 65 + "{}" + "]" * 65, "9" * 5_000, "{", "\udcff"]
)
def test_json_that_nests_or_is_none_is_one_line_with_the_file_s_name(tmp_path, text):
    file = tmp_path / "result.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"result\.json") as found:
        durable.read_json(file)
    assert len(str(found.value)) < 500


def test_what_nests_as_deep_as_is_allowed_is_read_and_brackets_in_text_do_not_count(tmp_path):
    for text in ("[" * 64 + "]" * 64, '["' + "[" * 1000 + '"]', "[" + "[]," * 1000 + "[]]"):
        (tmp_path / "a.json").write_text(text)
        assert isinstance(durable.read_json(tmp_path / "a.json"), list)


def test_more_bytes_than_the_bound_are_not_read(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(1 << 40)  # a sparse file of a terabyte
    with pytest.raises(ValueError, match=r"a\.json has more than 16,777,216 bytes"):
        durable.read_json(tmp_path / "a.json")
    assert reading.end_of(tmp_path / "a.json", 10) == bytes(10)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 200_000, "more than 64 deep"),
        ("".join(" " * depth + "a:\n" for depth in range(200)), "more than 64 deep"),
        ("a: &a [1]\n\nb: *a", 'write the value of *a itself\n  in "{file}", line 3, column 4'),
        ("a: &a {x: 1}\nb: {<<: *a}", "line 2, column 9"),
        ("&a [*a]", "an alias is not read here"),
        ("*" + "b" * 100_000, "an alias is not read here"),
        ("a: 1:" + "1:" * 50_000 + "1", "more than 100 digits"),
        ("a: !!int ''", "cannot be read as YAML"),
        ("a: !!python/object/apply:os.system [id]", "cannot be read as YAML"),
        ("a: " + "x" * 300_000, "more than 262,144 bytes"),
    ],
    ids=range(10),
)
def test_yaml_that_nests_repeats_itself_or_is_none_is_a_short_message(tmp_path, text, why):
    file = tmp_path / "profile.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"profile\.yaml") as found:
        reading.read_yaml(file)
    assert why.format(file=file) in str(found.value) and len(str(found.value)) < 2000


def test_yaml_as_people_write_it_is_read_as_before(tmp_path):
    text = "base: {rate: 0.1, names: [ä, 语]}\nother: &other {rate: 2}\nwhen: 2020-01-01\nnone: ~\n"
    (tmp_path / "a.yaml").write_text(text)
    assert reading.read_yaml(tmp_path / "a.yaml") == yaml.safe_load(text)
    for encoding in ("utf-8-sig", "utf-16"):  # as Notepad and PowerShell write
        (tmp_path / "b.yaml").write_bytes(text.replace("\n", "\r\n").encode(encoding))
        assert reading.read_yaml(tmp_path / "b.yaml") == yaml.safe_load(text)


def test_a_message_quotes_no_more_than_a_person_reads():
    assert len(str(BadInput("x" * 1_000_000))) < 21_000
    assert str(BadInput("what, where and what to do")) == "what, where and what to do"
