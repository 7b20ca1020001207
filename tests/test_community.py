"""Files for people: the citation is valid, bundled things have a licence, templates and workflows are well-formed."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from left_out import LEFT_OUT

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
BINARY = re.compile(r"\.(safetensors|npz|npy|png|jpg|tfrecords|svg|woff2?|min\.js)$|tfrecord-\d+-of-\d+$")


def check_reference(reference: dict, kinds: set[str]) -> None:
    """The rules of the Citation File Format 1.2.0 for the fields that are used here."""
    assert reference["type"] in kinds
    assert isinstance(reference["title"], str)
    assert reference["authors"]
    for author in reference["authors"]:
        assert set(author) <= {"name"} or {"family-names", "given-names"} == set(author), author
        assert all(isinstance(part, str) and part for part in author.values())
    if "year" in reference:
        assert isinstance(reference["year"], int)
    if "url" in reference:
        assert re.match(r"https?://\S+$", reference["url"])
    for identifier in reference.get("identifiers", []):
        assert identifier["type"] in {"doi", "url", "swh", "other"}
        assert isinstance(identifier["value"], str)


def test_the_citation_file_is_valid():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    known = "cff-version title message type license authors preferred-citation url identifiers keywords abstract"
    assert set(citation) <= set(known.split())
    assert citation["cff-version"] == "1.2.0"
    assert isinstance(citation["message"], str)
    assert citation["license"] == "MIT"
    check_reference(citation, {"software", "dataset"})
    preferred = citation["preferred-citation"]
    assert set(preferred) <= {"type", "title", "authors", "journal", "year", "url", "identifiers", "doi", "volume"}
    check_reference(preferred, {"article", "software", "conference-paper"})


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "artcle", "title": "A", "authors": [{"name": "B"}]},
        {"type": "article", "title": "A", "authors": []},
        {"type": "article", "title": "A", "authors": [{"family-name": "B"}]},
        {"type": "article", "title": "A", "authors": [{"name": "B"}], "year": "2024"},
    ],
)
def test_the_check_of_citations_can_fail(broken):
    with pytest.raises(AssertionError):
        check_reference(broken, {"article"})


def test_every_bundled_thing_has_a_licence():
    if not (ROOT / ".git").exists():
        pytest.skip("only a clone can say which files belong to it")
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    places = [line.split("|")[2].strip(" `") for line in page.splitlines() if line.startswith("| ") and "`" in line]
    for place in places:
        assert (ROOT / place).exists(), f"docs/licences.md names {place}, which is not there"
    committed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in (name for name in committed if BINARY.search(name)):
        assert any(Path(name).is_relative_to(place) for place in places), (
            f"docs/licences.md does not say whose {name} is"
        )


def test_what_the_licences_leave_out_of_wheel_and_sdist_is_left_out():
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    excluded = {line.split("|")[2].strip(" `") for line in page.splitlines() if "not in wheel or sdist" in line}
    assert excluded
    assert excluded <= set(LEFT_OUT)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_says_that_it_never_ran_and_calls_what_exists(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Written where no such service can be reached: it passes actionlint and has never run.\n")
    jobs = yaml.safe_load(text)["jobs"]
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE))
    for job in jobs.values():
        for command in (step["run"] for step in job["steps"] if "run" in step):
            for asked in re.findall(r"\.\[([\w,]+)\]", command):
                assert set(asked.split(",")) <= extras
            for script in re.findall(r"(?:tests/everything|\.ci/run)", command):
                assert (ROOT / script).is_file()
    assert {path.stem for path in WORKFLOWS} == {"tests", "docs", "wheel", "browser"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=lambda path: path.stem)
def test_an_issue_template_has_a_name_and_says_what_it_is_for(path):
    _, head, body = path.read_text(encoding="utf-8").split("---\n")
    assert set(yaml.safe_load(head)) == {"name", "about"}
    assert "**" in body


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"])
def test_community_files_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)#]+)\)|`(tests/[\w./]+)`", (ROOT / name).read_text(encoding="utf-8")):
        path = "".join(target)
        assert path.startswith("http") or (ROOT / path).exists(), f"{name} names {path}, which is not there"
