import hashlib
import random
import socket

import pytest

from pixelpart.data.download import Unavailable, fetch, new_folder

CONTENT = random.Random(0).randbytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file.gz"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_and_progress_ends_at_its_size(server, target):
    server.content = CONTENT
    seen = []
    assert fetch(server.url, target, md5=MD5, progress=lambda *args: seen.append(args)) == target
    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("file.gz", len(CONTENT), len(CONTENT), "")
    assert names(target.parent) == ["file.gz"]


@pytest.mark.parametrize(
    ("breaks", "part", "requests"),
    [
        ([100_000, 50_000], None, [None, "bytes=100000-", "bytes=150000-"]),
        ([40_000] * 7, None, [None, *(f"bytes={40_000 * k}-" for k in range(1, 8))]),
        ([], CONTENT[:123_456], ["bytes=123456-"]),
        ([], CONTENT, ["bytes=300000-"]),
        ([], b"x" * 1000, ["bytes=1000-", None]),
    ],
    ids=["broken connection", "many", "partial file", "complete partial file", "partial file of other content"],
)
def test_a_download_is_resumed(server, target, breaks, part, requests):
    server.content, server.breaks = CONTENT, breaks
    if part is not None:
        target.with_name("file.gz.part").write_bytes(part)
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT
    assert server.requests == requests


def test_a_server_without_ranges_is_read_from_the_beginning(server, target):
    server.content, server.breaks, server.ranges = CONTENT, [100_000], False
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_leaves_nothing(server, target):
    server.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(Unavailable, match=f"127.0.0.1 sent a file with md5 .*, not {MD5}"):
        fetch(server.url, target, md5=MD5)
    assert names(target.parent) == []


def test_a_server_that_keeps_failing_is_given_up_and_the_partial_file_remains(server, target):
    server.content, server.breaks = CONTENT, [1000] + [0] * 20
    with pytest.raises(Unavailable, match="after 1,000 bytes, which are kept"):
        fetch(server.url, target, md5=MD5)
    assert names(target.parent) == ["file.gz.part"]
    server.breaks = []
    fetch(server.url, target, md5=MD5)
    assert names(target.parent) == ["file.gz"]


def test_an_http_error_names_the_host(server, target):
    refuse = {"do_GET": lambda self: self.send_error(404)}
    server.RequestHandlerClass = type("Refuses", (server.RequestHandlerClass,), refuse)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1 answered 404"):
        fetch(server.url, target, md5=MD5)


def test_a_refused_connection_is_an_error_at_once(target, monkeypatch):
    attempts, connect = [], socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *args: attempts.append(args) or connect(*args))
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1: .*refused"):
        fetch("http://127.0.0.1:9/file.gz", target, md5=MD5)
    assert len(attempts) == 1  # one may last TIMEOUT
    assert names(target.parent) == []


def test_a_folder_that_cannot_be_filled_is_deleted(tmp_path):
    with pytest.raises(IsADirectoryError), new_folder(tmp_path / "set") as folder:
        folder.write_bytes(b"")
    assert names(tmp_path) == []


def test_a_file_that_is_there_is_checked_and_never_overwritten(target):
    target.write_bytes(CONTENT)
    assert fetch("http://127.0.0.1:9/file.gz", target, md5=MD5) == target
    target.write_bytes(b"mine")
    with pytest.raises(Unavailable, match="has md5"):
        fetch("http://127.0.0.1:9/file.gz", target, md5=MD5)
    assert target.read_bytes() == b"mine"
