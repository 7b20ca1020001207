"""Downloads against a server on this machine that cuts, lies and forgets."""

import base64
import contextlib
import errno
import http.client
import http.server
import io
import json
import threading
import time

import google_crc32c
import numpy as np
import pytest

from slotnorm.cli.verbs import main
from slotnorm.data import download as module
from slotnorm.data import web
from slotnorm.data.download import CLEVR_FILE, FOLDERS, download
from slotnorm.errors import DamagedFile, Locked, UserError
from slotnorm.storage.locks import Lock
from tfrecord_writer import frame

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
        self.words = None
        self.headers = {}  # instead of the true ones
        self.extra = b""  # sent beyond the announced length, by an answer in chunks
        self.redirects = {}  # path -> where it leads
        self.page, self.pages_sent = b"", 0  # sent again and again with a redirection
        self.chunk_lengths = b""  # sent slowly instead of a body
        self.seconds_per_byte = 0.0
        self.seconds_before_headers = 0.0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that went away is not news."""


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
        time.sleep(server.seconds_before_headers)
        if self.path in server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects[self.path])
            self.end_headers()
            while body and server.page and server.pages_sent < 64:
                self.wfile.write(server.page)
                server.pages_sent += 1
            return
        content = server.content.get(self.path)
        if server.status or content is None:
            self.send_error(server.status or 404, server.words)
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
        headers = {"Content-Length": str(len(content) - start)} if server.says_length else {}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if server.extra:
            headers["Transfer-Encoding"] = "chunked"
        for name, value in (headers | server.headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if body:
            self.send_body(content[start:])

    def send_body(self, rest):
        server = self.server
        if server.cut_after:
            rest = rest[: server.cut_after.pop(0)]
        if server.extra:
            for part in (rest, server.extra):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        elif server.chunk_lengths:
            for byte in server.chunk_lengths:
                self.wfile.write(bytes([byte]))
                time.sleep(0.02)
        elif server.seconds_per_byte:
            for number in range(len(rest)):
                self.wfile.write(rest[number : number + 1])
                time.sleep(server.seconds_per_byte)
        else:
            self.wfile.write(rest)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(web, "BLOCK", 10_000)
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
    (asked,) = [wanted for method, _, wanted in server.requests if method == "GET" and wanted]
    assert 50_000 <= int(asked.removeprefix("bytes=").removesuffix("-")) < 60_000


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


def test_an_encoding_that_nobody_asked_for_and_a_folder_that_cannot_be_are_refused(server, tmp_path):
    server.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(UserError, match=r"answers with an encoding that was not asked for \(gzip\); try a --mirror"):
        get(server, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to .*file/set: .*; choose another --out"):
        get(server, tmp_path / "file" / "set")


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


@pytest.mark.parametrize("name", [["x"], {"x": 1}, None, 1, "a" * 100_000])
def test_a_split_of_any_name_is_harmless(server, tmp_path, name):
    shards = movi_content(server, numBytes="599999")
    description = json.loads(server.content[MOVI + "dataset_info.json"])
    description["splits"].append({"name": name, "shardLengths": [], "numBytes": "1"})
    server.content[MOVI + "dataset_info.json"] = json.dumps(description).encode()
    with pytest.raises(UserError, match="lists no shards of train; known are: ") as refused:
        get(server, tmp_path, "movi-c", ("train",))
    assert len(str(refused.value)) < 1000
    with contextlib.suppress(UserError):  # a name that is not text may be refused, too
        get(server, tmp_path, "movi-c", ("val",))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset_info.json", *shards]


def test_a_file_without_a_byte_is_one_sentence(server, tmp_path):
    server.content = dict.fromkeys(server.content, b"")
    with pytest.raises(UserError, match="has no content; try again later, or a --mirror"):
        get(server, tmp_path)


def test_a_server_that_begins_again_and_again_is_given_up(server, tmp_path, monkeypatch):
    """It sends much and little in turn, always from the first byte: what is there twice is not progress."""
    server.answers_ranges = False
    server.cut_after = [200_000, 100] * 50
    with pytest.raises(UserError, match="broke off after"):
        get(server, tmp_path)
    assert len(server.cut_after) > 80


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


def test_the_published_addresses_are_secure():
    assert module._BUCKETS.startswith("https://")


def shards_of_all_first_bytes(server):
    """256 shards; the first byte of a TFRecord is the low byte of its first record's length."""
    shards = movi_content(server, lengths=["1"] * 256, numBytes="99999")
    for number, shard in enumerate(shards):
        server.content[MOVI + shard] = frame(b"<" * number)
    return shards


@pytest.mark.parametrize("checksum", [None, ""], ids=["checksum published", "no checksum"])
def test_a_shard_may_begin_with_any_byte(server, tmp_path, checksum):
    shards = shards_of_all_first_bytes(server)
    server.checksum = checksum
    get(server, tmp_path, "movi-c", ("val",))
    assert {(tmp_path / shard).read_bytes()[0] for shard in shards} == set(range(256))


@pytest.mark.parametrize("page", [b"<!doctype html><title>Log in</title>", b"  \n<html></html>", b"<" * 60])
def test_a_page_that_says_it_is_data_is_told_from_a_shard(server, tmp_path, page):
    server.content[CLEVR_PATH], server.checksum = page, ""
    with pytest.raises(UserError, match="is a web page and not data"):
        get(server, tmp_path)


def test_no_byte_beyond_the_announced_length_is_written(server, tmp_path, monkeypatch):
    server.extra = bytes(1_000_000)
    written = []
    write = module._write

    def counted(file, block, part):
        written.append(len(block))
        write(file, block, part)

    monkeypatch.setattr(module, "_write", counted)
    with pytest.raises(UserError, match="sends more than the 300000 bytes it announced"):
        get(server, tmp_path)
    assert sum(written) <= len(DATA)
    assert [path.name for path in tmp_path.iterdir()] == [f"{CLEVR_FILE}.part.json"]


def test_a_part_that_is_longer_than_the_file_is_not_taken_for_it(server, tmp_path):
    server.cut_after = [100_000] + [0] * 20
    with pytest.raises(UserError):
        get(server, tmp_path)
    server.cut_after, server.checksum = [], ""
    with open(tmp_path / f"{CLEVR_FILE}.part", "ab") as part:
        part.write(bytes(300_000))
    # the same version of the file, as the description beside it says
    about = tmp_path / f"{CLEVR_FILE}.part.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "crc32c": ""}))
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA


@pytest.mark.parametrize(
    "sent",
    ["bytes 0-299999/300000", "bytes 100001-299999/300000", "bytes 100000-299999/400000", "bytes */300000", None],
)
def test_a_range_from_another_place_is_refused(server, tmp_path, sent):
    server.cut_after = [100_000] + [0] * 20
    with pytest.raises(UserError):
        get(server, tmp_path)
    server.cut_after, server.headers = [], {"Content-Range": sent}
    with pytest.raises(UserError, match="was asked for the bytes from 100000 on and sends"):
        get(server, tmp_path)
    assert not (tmp_path / CLEVR_FILE).exists()


def test_a_server_that_trickles_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "WINDOW", 0.2)
    server.seconds_per_byte = 0.02
    sentence = r"broke off after \d+ of 300000 bytes \(less than 200 bytes came in 0 s\); the same command continues"
    with pytest.raises(UserError, match=sentence):
        get(server, tmp_path)
    assert 0 < (tmp_path / f"{CLEVR_FILE}.part").stat().st_size < 1000


def test_a_server_that_trickles_the_length_of_a_chunk_is_given_up(server, tmp_path, monkeypatch):
    """Nothing of it is content: no read returns, and none ever waits for a minute."""
    monkeypatch.setattr(web, "WINDOW", 0.2)
    monkeypatch.setattr(module, "_ATTEMPTS", 1)
    server.headers, server.chunk_lengths = {"Transfer-Encoding": "chunked"}, b"0" * 400
    began = time.monotonic()
    with pytest.raises(UserError, match=r"broke off after 0 of 300000 bytes \(less than 200 bytes came"):
        get(server, tmp_path)
    assert time.monotonic() - began < 6  # all of them take 8 s


def test_the_page_of_a_redirection_is_not_read(server, tmp_path):
    """However long: the library would keep all of it in memory."""
    server.redirects = {CLEVR_PATH: "/elsewhere"}
    server.content, server.page = {"/elsewhere": DATA}, bytes(1 << 20)
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA
    assert server.pages_sent < 64  # megabytes; an endless one has no last


def test_headers_that_do_not_come_are_not_waited_for(server, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "SECONDS_FOR_HEADERS", 0.1)
    server.seconds_before_headers = 3.0
    began = time.monotonic()
    with pytest.raises(UserError, match="cannot be reached"):
        get(server, tmp_path)
    assert time.monotonic() - began < 2.5


@pytest.mark.parametrize("length", ["²", "1" * 5000, "-1", "1e5", "٣", "", " "])
def test_a_length_that_is_not_a_number_is_one_sentence(server, tmp_path, length):
    server.headers = {"Content-Length": length.encode("utf-8").decode("latin-1")}
    with pytest.raises(UserError, match=r"does not say its length|cannot be reached"):
        get(server, tmp_path)


@pytest.mark.parametrize("number", ["²", "1" * 5000, "1e999", -5, 1e999, None, [], {}, True, "0x10"])
def test_a_number_of_the_description_that_is_none_is_one_sentence(server, tmp_path, number):
    shards = movi_content(server, numBytes=number)
    get(server, tmp_path, "movi-c", ("val",))
    assert (tmp_path / shards[0]).exists(), "what a split takes is only for the bar"
    movi_content(server, lengths=[number])
    with pytest.raises(UserError, match="does not list the shards|is not the JSON"):
        get(server, tmp_path / "again", "movi-c", ("val",))


@pytest.mark.parametrize(
    "leads_to", ["http://[::1", "file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x", "//", "http:///"]
)
def test_a_redirection_to_nowhere_is_one_sentence(server, tmp_path, leads_to):
    server.redirects[CLEVR_PATH] = leads_to
    with pytest.raises(UserError, match="cannot be had|cannot be reached|is not an address"):
        get(server, tmp_path)


def test_a_circle_of_redirections_ends(server, tmp_path):
    server.redirects[CLEVR_PATH] = CLEVR_PATH
    with pytest.raises(UserError, match="cannot be had"):
        get(server, tmp_path)


def test_a_redirection_is_followed(server, tmp_path):
    server.content["/elsewhere"] = DATA
    server.redirects[CLEVR_PATH] = f"{server.url}/elsewhere"
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA


@pytest.mark.parametrize("leads_to", ["http", "HTTP", "ftp"])
def test_https_stays_https_and_no_insecure_request_is_made(server, tmp_path, monkeypatch, leads_to):
    """A TLS server of this machine is too much for a test: its answer is put in place of the connection's."""
    insecure = f"{leads_to}://127.0.0.1:{server.server_port}/elsewhere"
    hops = {"https://secure.example/a": "https://other.example/b", "https://other.example/b": insecure}
    asked = []

    def open_secure(self, request):
        asked.append(request.full_url)
        answer = http.client.HTTPResponse(Socket(f"HTTP/1.1 302 Found\r\nLocation: {hops[request.full_url]}\r\n\r\n"))
        answer.begin()
        answer.msg, answer.url = answer.reason, request.full_url
        return answer

    monkeypatch.setattr(web._Secure, "https_open", open_secure)
    with pytest.raises(UserError, match="https://other.example/b leads to the insecure address .*/elsewhere"):
        web.open_address("https://secure.example/a")
    assert asked == list(hops)
    assert server.requests == []


class Socket:
    """Stands for a connection over which this was received."""

    def __init__(self, received):
        self.received = received.encode()

    def makefile(self, mode):
        return io.BytesIO(self.received)


def test_the_words_of_a_server_cannot_command_the_terminal(server, tmp_path):
    server.status, server.words = 404, "gone \x1b[2J\x1b]0;title\x07 \x9b31m"
    with pytest.raises(UserError) as caught:
        get(server, tmp_path)
    assert str(caught.value).isprintable()
    assert r"gone \x1b[2J\x1b]0;title\x07 \x9b31m" in str(caught.value)


def test_a_version_name_that_cannot_be_sent_back_is_left_out(server, tmp_path):
    server.etag, server.cut_after = '"1\x0b2"', [100_000]
    get(server, tmp_path)
    assert (tmp_path / CLEVR_FILE).read_bytes() == DATA
