"""A worker process of `conversion.in_processes`: reads a function, then items, from stdin; writes answers to stdout."""

import pickle
import signal
import sys

from slotnorm.errors import UserError


def main() -> None:
    """Answer until the parent closes the pipe: by ending, or by dying."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing that a library prints may get between the answers
    function = pickle.load(source)  # what our own parent process sends, nothing from a file
    while True:
        try:
            item = pickle.load(source)
        except EOFError:
            return
        try:
            answer = function(item)
        except UserError as error:
            answer = error
        try:
            pickle.dump(answer, sink, protocol=5)
            sink.flush()
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
