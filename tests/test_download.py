"""Downloads against a server on this machine that cuts, lies and forgets."""

import base64
import errno
import http.server
import json
import threading

import google_crc32c
import numpy as np
import pytest

from slotnorm.cli.verbs import main
from slotnorm.data import download as module
from slotnorm.data.download import CLEVR_FILE, FOLDERS, download
from slotnorm.errors import DamagedFile, Locked, UserError
from slotnorm.storage.files import Lock

DATA = np.random.default_rng(0).bytes(300_000)
CLEVR_PATH = "/" + FOLDERS["clevr"] + CLEVR_FILE
MOVI = "/" + FOLDERS["movi-c"]


class Server(http.server.ThreadingHTTPServer):
    """Serves `content`; the other attributes say what goes wrong."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = {CLEVR_PATH: DATA}
        self.requests = []  # (method, path, range)
        self.cut_after = []  # bytes of each of the next answers, then the connection breaks
        self.answers_ranges = True
        self.kind = "application/octet-stream"
        self.etag = '"1"'
        self.checksum = None  # None: the right one; "": none
        self.says_length = True
        self.status = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that went away is no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def log_message(self, *_):
        pass

    def answer(self, body):
        server = self.server
        wanted = self.headers.get("Range")
        server.requests.append((self.command, self.path, wanted))
        content = server.content.get(self.path)
        if server.status or content is None:
            self.send_error(server.status or 404)
            return
        start = 0
        if wanted and server.answers_ranges and self.headers.get("If-Range", server.etag) == server.etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", server.kind)
        self.send_header("ETag", server.etag)
        crc = base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
        if server.checksum != "":
            self.send_header("x-goog-hash", f"crc32c={server.checksum or crc}")
            self.send_header("x-goog-hash", "md5=xxxxxxxxxxxxxxxxxxxxxx==")
        if server.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if body:
            rest = content[start:]
            if server.cut_after:
                rest = rest[: server.cut_after.pop(0)]
            self.wfile.write(rest)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(module, "_BLOCK", 10_000)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, folder, name="clevr", splits=("test",)):
    return download(name, splits, folder, mirror=server.url)


def test_a_file_arrives_whole_and_one_line_says_what_and_how_much(server, tmp_path, caplog):
    assert get(server, tmp_path / "out") == tmp_path / "out"
    assert (tmp_path / "out" / CLEVR_FILE).read_bytes() == DATA
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [CLEVR_FILE]
    first = caplog.messages[0]
    assert first == f"{CLEVR_FILE}: 0.00 GB from {server.url}/{FOLDERS['clevr']} to {tmp_path / 'out'}"


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    get(server, tmp_path)
    server.requests.clear()
    get(server, tmp_path)
    assert "GET" not in [method for method, _, _ in server.requests]


def test_a_cut_connection_is_resumed_where_it_broke(server, tmp_path):
    server.cut_after = [120_000, 50_001, 0]
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA
    assert [wanted for method, _, wanted in server.requests if method == "GET"] == [
        None, "bytes=120000-", "bytes=170001-", "bytes=170001-",
    ]  # fmt: skip


def test_a_connection_that_stays_cut_is_one_sentence_and_the_next_command_continues(server, tmp_path):
    server.cut_after = [100_000] + [0] * 20
    with pytest.raises(UserError, match="broke off after 100000 of 300000 bytes .*the same command continues"):
        get(server, tmp_path)
    assert not (tmp_path / CLEVR_FILE).exists()
    server.cut_after = []
    server.requests.clear()
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA
    assert ("GET", CLEVR_PATH, "bytes=100000-") in server.requests


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.answers_ranges = False
    server.cut_after = [100_000]
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA


@pytest.mark.parametrize("same_length", [True, False])
def test_a_part_of_another_version_is_not_continued(server, tmp_path, same_length):
    server.cut_after = [100_000] + [0] * 20
    with pytest.raises(UserError):
        get(server, tmp_path)
    server.cut_after = []
    server.etag = '"2"'
    server.content[CLEVR_PATH] = other = DATA[::-1] if same_length else DATA[::-1][:250_000]
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == other


def test_a_file_that_changes_while_it_is_fetched_is_noticed(server, tmp_path, monkeypatch):
    describe = module.describe

    def changing(url):
        server.content[CLEVR_PATH] = DATA
        remote = describe(url)
        server.content[CLEVR_PATH] = DATA[:-1]
        return remote

    monkeypatch.setattr(module, "describe", changing)
    with pytest.raises(UserError, match="now has another length"):
        get(server, tmp_path)
    assert not (tmp_path / CLEVR_FILE).exists()


def test_a_wrong_checksum_is_refused_and_nothing_of_it_stays(server, tmp_path):
    server.checksum = base64.b64encode(b"1234").decode()
    with pytest.raises(DamagedFile, match="does not have the published checksum"):
        get(server, tmp_path)
    assert not (tmp_path / CLEVR_FILE).exists()
    assert not (tmp_path / f"{CLEVR_FILE}.part").exists()


def test_without_a_published_checksum_the_length_decides(server, tmp_path):
    server.checksum = ""
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA


def test_a_web_page_instead_of_data_is_refused(server, tmp_path):
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(UserError, match=r"answers with a web page \(text/html\)"):
        get(server, tmp_path)
    server.kind = "application/octet-stream"  # a page that does not say so
    server.content[CLEVR_PATH] = b"\n<!doctype html><title>Log in</title>"
    with pytest.raises(UserError, match="is a web page and not data"):
        get(server, tmp_path)
    assert not (tmp_path / CLEVR_FILE).exists()


def test_a_file_of_another_length_under_the_name_is_not_overwritten(server, tmp_path):
    (tmp_path / CLEVR_FILE).write_bytes(b"mine")
    with pytest.raises(UserError, match="has 4 bytes, not the published 300000; delete it first"):
        get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == b"mine"


def test_a_disk_without_room_is_told_before_a_byte_is_fetched(server, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("slotnorm.data.conversion.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"about 0\.0 GB are needed .* has 0\.0 GB free"):
        get(server, tmp_path)
    assert "GET" not in [method for method, _, _ in server.requests]


def test_a_disk_that_fills_up_is_one_sentence_and_the_part_stays(server, tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, block):
            if self.file.tell() >= 50_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(block)

        def flush(self):
            self.file.flush()

    write = module._write
    monkeypatch.setattr(module, "_write", lambda file, block, part: write(Full(file), block, part))
    with pytest.raises(UserError, match=r"cannot write .*part: No space left on device; free some space"):
        get(server, tmp_path)
    monkeypatch.setattr(module, "_write", write)
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA
    assert ("GET", CLEVR_PATH, "bytes=50000-") in server.requests


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (404, "had: the server answers 404 Not Found"),
        (403, "had: the server answers 403 Forbidden"),
        (503, "reached .the server answers 503"),
    ],
)
def test_what_the_server_refuses_is_one_sentence(server, tmp_path, status, sentence):
    server.status = status
    with pytest.raises(UserError, match=f"cannot be {sentence}"):
        get(server, tmp_path)


def test_a_server_that_fails_for_a_while_is_asked_again(server, tmp_path, monkeypatch):
    receive, failures = module._receive, [ConnectionError("the server answers 503")] * 3

    def failing(*arguments):
        if failures:
            raise failures.pop()
        receive(*arguments)

    monkeypatch.setattr(module, "_receive", failing)
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA


def test_a_length_that_is_not_said_is_refused(server, tmp_path):
    server.says_length = False
    with pytest.raises(UserError, match="does not say its length"):
        get(server, tmp_path)


def test_no_network_is_one_sentence(tmp_path):
    for name in ("clevr", "movi-c"):
        with pytest.raises(UserError, match=r"cannot be reached \(.*refused.*\); check the network"):
            download(name, ("test",), tmp_path, mirror="http://127.0.0.1:9")


@pytest.mark.parametrize("mirror", ["nowhere", "file:///etc", "ftp://127.0.0.1", "https://"])
def test_a_mirror_is_a_web_address(tmp_path, mirror):
    with pytest.raises(UserError, match="is not the address of a mirror"):
        download("clevr", ("test",), tmp_path, mirror=mirror)


def movi_content(server, lengths=("1", "1"), **extra):
    shards = [f"movi_c-validation.tfrecord-{number:05}-of-{len(lengths):05}" for number in range(len(lengths))]
    description = {
        "splits": [
            {"name": "validation", "shardLengths": list(lengths), **extra},
            {"name": "test", "shardLengths": ["9"]},
        ]
    }
    server.content = {MOVI + shard: DATA[number:] for number, shard in enumerate(shards)}
    server.content[MOVI + "dataset_info.json"] = json.dumps(description).encode()
    return shards


@pytest.mark.parametrize("extra", [{}, {"numBytes": "599999"}])
def test_movi_shards_are_those_of_the_published_description(server, tmp_path, extra, caplog):
    shards = movi_content(server, **extra)
    get(server, tmp_path, "movi-c", ("val",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset_info.json", *shards]
    assert (tmp_path / shards[1]).read_bytes() == DATA[1:]
    assert "2 files of movi-c: 0.00 GB" in caplog.text


def test_a_missing_shard_is_named(server, tmp_path):
    shards = movi_content(server, numBytes="599999")
    del server.content[MOVI + shards[1]]
    with pytest.raises(UserError, match=rf"{shards[1]} cannot be had: the server answers 404"):
        get(server, tmp_path, "movi-c", ("val",))


def test_a_description_that_cannot_be_used_is_one_sentence(server, tmp_path):
    movi_content(server)
    with pytest.raises(UserError, match="lists no shards of train; known are: validation, test"):
        get(server, tmp_path, "movi-c", ("train",))
    for content, sentence in (
        (b"<html>", "is not the JSON"),
        (b"[" * 100_000, "is not the JSON"),
        (b"[]", "does not list"),
    ):
        server.content[MOVI + "dataset_info.json"] = content
        with pytest.raises(UserError, match=sentence):
            get(server, tmp_path, "movi-c", ("val",))


def test_misspelt_names_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no dataset 'cleverer' to download; did you mean 'clevr'"):
        download("cleverer", out=tmp_path)
    with pytest.raises(UserError, match="there is no split 'validation'; .*known are: train, val, test"):
        download("movi-c", ("validation",), tmp_path)


def test_two_downloads_do_not_write_one_folder(server, tmp_path):
    with Lock(tmp_path), pytest.raises(Locked):
        get(server, tmp_path)


def test_the_command_says_where_the_file_is_and_what_comes_next(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SLOTNORM_CACHE", str(tmp_path))
    main(["data", "download", "clevr", "--mirror", server.url])
    folder = tmp_path / "downloads" / FOLDERS["clevr"]
    assert (folder / CLEVR_FILE).read_bytes() == DATA
    assert capsys.readouterr().out == f"{folder}\nnext: slotnorm data clevr --from {folder / CLEVR_FILE}\n"


def test_the_published_addresses_are_secure_and_stay_so():
    assert module._BUCKETS.startswith("https://")
    answer = type("Answer", (), {"url": "http://elsewhere/file"})
    with pytest.raises(UserError, match="leads to the insecure address http://elsewhere/file"):
        module._check_answer(answer, module._BUCKETS + "file")
