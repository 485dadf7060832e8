"""A small fake CIFAR-10 in every official layout, and a web server with broken connections."""

import hashlib
import io
import json
import pickle
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from pixelpart.data import cifar10

PER_FILE = 20


class Fake:
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        n = 6 * PER_FILE
        self.pixels = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
        self.labels = rng.integers(0, 10, n, dtype=np.uint8)

    def batch(self, number):
        part = slice(number * PER_FILE, (number + 1) * PER_FILE)
        return self.pixels[part], self.labels[part]

    def bin(self, number) -> bytes:
        pixels, labels = self.batch(number)
        return b"".join(bytes([label]) + image.tobytes() for image, label in zip(pixels, labels, strict=True))

    def py(self, number) -> bytes:
        """As the official files: protocol 2, keys as bytes."""
        pixels, labels = self.batch(number)
        held = {b"data": pixels.reshape(PER_FILE, -1), b"labels": labels.tolist(), b"batch_label": b"x"}
        return pickle.dumps(held, 2)

    def archive(self) -> bytes:
        return self.tar({f"cifar-10-batches-bin/{name}.bin": self.bin(i) for i, name in enumerate(cifar10.BATCHES)})

    def npm(self) -> bytes:
        files = {}
        for i, name in enumerate(cifar10.BATCHES):
            buffer = io.BytesIO()
            Image.fromarray(self.batch(i)[0].transpose(0, 2, 3, 1).reshape(PER_FILE, 1024, 3)).save(buffer, "png")
            files[f"package/{name}.png"] = buffer.getvalue()
        files["package/train_lables.json"] = json.dumps(self.labels[: 5 * PER_FILE].tolist()).encode()
        files["package/test_lables.json"] = json.dumps(self.labels[5 * PER_FILE :].tolist()).encode()
        return self.tar(files)

    def write_bin(self, root):
        folder = root / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        for i, name in enumerate(cifar10.BATCHES):
            (folder / f"{name}.bin").write_bytes(self.bin(i))
        return folder

    def write_py(self, root):
        folder = root / "cifar-10-batches-py"
        folder.mkdir(parents=True)
        for i, name in enumerate(cifar10.BATCHES):
            (folder / name).write_bytes(self.py(i))
        return folder

    @staticmethod
    def tar(files: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return buffer.getvalue()


@pytest.fixture
def fake(monkeypatch):
    fake = Fake()
    monkeypatch.setattr(cifar10, "PER_FILE", PER_FILE)
    monkeypatch.setattr(cifar10, "COUNTS", {"train": 5 * PER_FILE, "test": PER_FILE})
    content = hashlib.sha256(fake.pixels.tobytes() + fake.labels.tobytes()).hexdigest()
    monkeypatch.setattr(cifar10, "CONTENT_SHA256", content)
    return fake


class Server(ThreadingHTTPServer):
    content = b""
    breaks: list[int]  # bytes after which the next connections break
    ranges = True
    requests: list[str | None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/cifar-10-binary.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        content = self.server.content
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if wanted and self.server.ranges and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted and self.server.ranges else 200)
        if wanted and self.server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = start + self.server.breaks.pop(0) if self.server.breaks else len(content)
        self.wfile.write(content[start:stop])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server(("127.0.0.1", 0), Handler)
    server.breaks, server.requests = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
