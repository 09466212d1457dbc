"""Many small cases in one test. All cases run, and the error names each one that fails.

A separate test per case would take longer to collect, to send to a worker and to report than the
case itself. The cases share the fixtures of the test, so they must leave nothing behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import pytest
from hypothesis import settings

T = TypeVar("T")
Test = Callable[..., None]
PER_RUN = 8
"""The examples of a test without settings of its own, in each run."""


def examples(count: int) -> settings:
    """Settings of hypothesis: ``count`` examples in each run, twelve times as many under soak."""
    return settings(max_examples=count * settings().max_examples // PER_RUN)


def a_third(cases: Iterable[Any]) -> list[Any]:
    """Parameters like ``pytest.mark.parametrize``: a third of the cases in each run, the others
    under soak."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.soak if number % 3 else (),
        )
        for number, case in enumerate(cases)
    ]


def check_each(
    cases: Iterable[T], check: Callable[[T], object], name: Callable[[T], str] = str
) -> None:
    """Check all cases. Failures are raised together, each with the name of its case as a note."""
    wrong: list[BaseException] = []
    names: list[str] = []
    tried = 0
    for case in cases:
        tried += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            names.append(name(case))
            error.add_note(f"in the case {names[-1]}")
            wrong.append(error)
    assert tried, "there are no cases"
    if wrong:
        raise BaseExceptionGroup(f"{len(wrong)} of {tried} cases: {'; '.join(names)}", wrong)


def each(
    parameters: str | tuple[str, ...],
    cases: Iterable[Any],
    *,
    ids: Callable[[Any], str] | Sequence[str] = repr,
) -> Callable[[Test], Test]:
    """Like ``pytest.mark.parametrize``, but one test for all cases. Several of these multiply."""
    names = (parameters,) if isinstance(parameters, str) else parameters
    given = list(cases)
    labels = [ids(case) for case in given] if callable(ids) else list(ids)

    def named(case: object) -> Mapping[str, object]:
        values = (case,) if isinstance(parameters, str) else tuple(cast("Iterable[object]", case))
        return dict(zip(names, values, strict=True))

    def decorate(test: Test) -> Test:
        def all_cases(**fixtures: object) -> None:
            check_each(
                zip(labels, given, strict=True),
                lambda labelled: test(**named(labelled[1]), **fixtures),
                lambda labelled: labelled[0],
            )

        whole = inspect.signature(test)
        rest = [p for name, p in whole.parameters.items() if name not in names]
        made: Any = all_cases
        made.__signature__ = whole.replace(parameters=rest)
        made.__name__, made.__qualname__ = test.__name__, test.__qualname__
        made.__module__, made.__doc__ = test.__module__, test.__doc__
        made.pytestmark = list(getattr(test, "pytestmark", []))
        return made

    return decorate
