"""Web requests that end: bounded in time and in bytes, never from https to http, and quoted harmlessly.

A server may send anything. What is used of its answer is checked here: whole numbers are digits, ranges are the ones
that were asked for, and an answer that trickles is cut.
"""

import contextlib
import functools
import http.client
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import slotnorm
from slotnorm.errors import UserError

BLOCK = 1 << 20  # bytes that are asked for at once
SECONDS_WITHOUT_DATA = 60.0
SECONDS_FOR_HEADERS = 60.0
WINDOW = 60.0  # seconds in which at least `WINDOW` x `LEAST_RATE` bytes come, or the connection is cut
LEAST_RATE = 1000.0  # bytes per second; at this rate MOVi-C would take years, so nobody waits for it
_MOST_DIGITS = 15


class TooSlow(ConnectionError):
    """A server that sends, but so little that it would never end."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but never from https to anything else: not even one request goes there."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.lower().startswith("https://"):
            raise UserError(f"{req.full_url} leads to the insecure address {newurl}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any
    ) -> http.client.HTTPResponse | None:
        fp.close()  # nobody asked for the page that says so, of whatever length; the library would read all of it
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Timed(http.client.HTTPConnection):
    """A connection whose answer's headers arrive in time, or it is cut; the answer can be cut, too."""

    def getresponse(self) -> http.client.HTTPResponse:
        cut = functools.partial(_cut, self.sock)
        timer = threading.Timer(SECONDS_FOR_HEADERS, cut)
        timer.daemon = True
        timer.start()
        try:
            answer = super().getresponse()
        finally:
            timer.cancel()
        answer.cut = cut  # type: ignore[attr-defined]
        return answer


class _TimedSecure(_Timed, http.client.HTTPSConnection):
    """The same over TLS."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS, which has no way to be cut from outside


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Timed, req)


class _Secure(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_TimedSecure, req, context=self._context)  # type: ignore[attr-defined]


def _opener() -> urllib.request.OpenerDirector:
    """http and https alone: no other kind of address is opened, whatever a server leads to."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), _Plain(), _Secure(), urllib.request.HTTPDefaultErrorHandler(), _Redirects(),
        urllib.request.HTTPErrorProcessor(), urllib.request.UnknownHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


def open_address(url: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Any:
    """The answer at an address; a refusal is one sentence, a failing server or connection OSError or HTTPException."""
    try:
        request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
        request.add_header("User-Agent", f"slotnorm/{slotnorm.__version__}")
        answer = _opener().open(request, timeout=SECONDS_WITHOUT_DATA)
    except urllib.error.HTTPError as error:
        reason = (str(error.reason).splitlines() or [""])[0]  # urllib has three lines on a redirection without end
        words = f"the server answers {error.code} {reason}"
        error.close()
        if error.code >= 500:
            raise ConnectionError(words) from None
        raise UserError(f"{url} cannot be had: {words}") from None
    except UserError:
        raise
    except (ValueError, http.client.InvalidURL) as error:  # of an address, here or in a redirection
        raise UserError(f"{url} is not an address that can be asked ({error})") from None
    kind = answer.headers.get_content_type()
    if kind == "text/html":
        raise UserError(f"{url} answers with a web page ({kind}) and not data; behind a login page, log in first")
    if (coding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise UserError(f"{url} answers with an encoding that was not asked for ({coding}); try a --mirror")
    return answer


@contextlib.contextmanager
def asking(url: str) -> Iterator[None]:
    """Where nothing is at stake, a failing connection is one sentence at once."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{url} cannot be reached ({reason}); check the network, or try a --mirror") from error


def read_answer(answer: Any, most: int) -> Iterator[bytes]:
    """What the server sends, in blocks as they come and never more than `most` bytes in all; `TooSlow` ends it.

    What counts is what arrives here: a server may also trickle what is not content, as the lengths of chunks.
    """
    came, ended, too_slow = 0, threading.Event(), threading.Event()

    def watch() -> None:
        before = 0
        while not ended.wait(WINDOW):
            if came - before < LEAST_RATE * WINDOW:
                too_slow.set()
                answer.cut()
                return
            before = came

    threading.Thread(target=watch, name="slotnorm-download", daemon=True).start()
    try:
        while came < most and (block := answer.read1(min(BLOCK, most - came))):
            came += len(block)
            yield block
    except (OSError, http.client.HTTPException):
        if not too_slow.is_set():
            raise
    finally:
        ended.set()
    if too_slow.is_set():
        raise TooSlow(f"less than {LEAST_RATE * WINDOW:.0f} bytes came in {WINDOW:.0f} s")


def whole_number(text: object) -> int | None:
    """The number that up to 15 ASCII digits say; None for anything else, as `²`, `1e999` or a thousand digits."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text if 0 <= text < 10**_MOST_DIGITS else None
    return int(text) if isinstance(text, str) and re.fullmatch(f"[0-9]{{1,{_MOST_DIGITS}}}", text) else None


def content_range(text: str) -> tuple[int, int, int] | None:
    """First byte, last byte and length of the whole, as `Content-Range: bytes 5-9/10` says; None for anything else."""
    match = re.fullmatch(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})", text.strip())
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def safe_etag(text: str) -> str:
    """The server's name of a version, where it can be sent back as it is; else nothing."""
    return text if re.fullmatch(r'(W/)?"[!#-~]{0,200}"', text) else ""
