"""The command line: in come words, out go calls of the rooms above; results go to stdout, progress to stderr."""

from slotnorm.cli.verbs import VERBS as VERBS
from slotnorm.cli.verbs import main as main
