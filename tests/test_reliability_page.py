"""docs/reliability.md says what the fault tests counted, and names tests that exist."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_table_is_made_from_the_counts_and_every_test_in_it_exists() -> None:
    specification = importlib.util.spec_from_file_location("make_reliability", ROOT / "docs" / "make_reliability.py")
    assert specification is not None
    assert specification.loader is not None
    making = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(making)
    assert making.page() == making.PAGE.read_text(encoding="utf-8"), "run python docs/make_reliability.py"
    counts = json.loads(making.COUNTS.read_text())
    assert counts
    for test, faults in counts.items():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), test
        assert all(tried == survived > 0 for _, tried, survived in faults), test
