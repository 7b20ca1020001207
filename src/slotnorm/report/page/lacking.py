"""What a report does not have, in sentences: a reader should not have to notice it."""

from slotnorm import experiments
from slotnorm.report.appearance import looks
from slotnorm.report.contents import Report, SectionContents
from slotnorm.report.page.words import counted, listed, set_in_words
from slotnorm.report.sections import Section


def lacking(report: Report) -> list[str]:
    """One sentence for each thing that is missing; nothing where all is there."""
    sentences = [sentence for contents in report.sections for sentence in _of_study(contents)]
    if report.left_out:
        names = f"{counted(len(report.left_out), 'run')} could not be used"
        sentences.append(f"{names}: the appendix on notes says which and why.")
    return sentences


def _of_study(contents: SectionContents) -> list[str]:
    section, title = contents.section, contents.section.title
    sentences = [*_tests(section), *_slots(section), *_runs(section)]
    illustration = contents.illustration
    if illustration is None:
        sentences.append(f"There are no pictures of {title}.")
        return sentences
    missing = [look.label for norm, look in looks(section.norms).items() if norm not in illustration.examples]
    if missing:
        sentences.append(f"There are no pictures of {listed(missing)} in {title}.")
    if illustration.any.labels is None:
        sentences.append(f"The scenes of {title} have no true masks, so no picture shows what is right.")
    if illustration.any.images is None:
        sentences.append(f"The scenes of {title} come without images: only their segments can be shown.")
    return sentences


def _tests(section: Section) -> list[str]:
    """Sets that were not evaluated, by any run or by those of a normalization."""
    if not section.sets:
        return [f"No run of {section.title} was tested on a set of its own."]
    study = experiments.studies().get(section.study)
    absent = [test.name for test in study.tests if test.name not in section.sets] if study else []
    sentences = [
        f"The study {section.title} was not tested on {name} ({set_in_words(section, name)})." for name in absent
    ]  # fmt: skip
    labels = looks(section.norms)
    for dataset in section.sets:
        untested = [labels[norm].label for norm in section.norms if not _tested(section, norm, dataset)]
        if untested:
            sentences.append(f"{listed(untested)} of {section.title} {_was(untested)} not tested on {dataset}.")
    if "f_ari" not in section.metrics():
        sentences.append(f"There is no F-ARI of {section.title}: its scenes have no true masks, or it was not scored.")
    return sentences


def _tested(section: Section, norm: str, dataset: str) -> bool:
    return any(dataset in run.datasets for run in section.of(norm))


def _was(subjects: list[str]) -> str:
    return "was" if len(subjects) == 1 else "were"


def _slots(section: Section) -> list[str]:
    known = section.slots()
    if len(known) == 1:
        return [f"The study {section.title} was tested with {counted(known[0], 'slot')} alone: its curves are points."]
    if known and max(known) <= section.train_slots:
        return [
            f"The study {section.title} was never tested with more than the {section.train_slots} slots of training."
        ]
    if known and section.train_slots not in known:
        return [f"The study {section.title} was not tested with the {section.train_slots} slots it was trained with."]
    return []


def _runs(section: Section) -> list[str]:
    sentences = []
    if len(section.norms) == 1:
        (label,) = (look.label for look in looks(section.norms).values())
        sentences.append(f"The study {section.title} has {label} alone: there is nothing to compare it with.")
    if all(len(section.of(norm)) == 1 for norm in section.norms):
        runs = "a single run" if len(section.norms) == 1 else "one run of each normalization"
        sentences.append(f"The study {section.title} has {runs}: what another seed would give is not known.")
    return sentences
