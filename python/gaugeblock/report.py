# SPDX-License-Identifier: Apache-2.0
"""What a verification showed."""

import dataclasses
import enum
import typing


class VerificationError(AssertionError):
    """Raised by Report.check() where the verdict is not PASS; its text is the report's."""


class Verdict(enum.Enum):
    """The verdicts of docs/gates.md. `exit_code` is what the program would have ended with."""

    PASS = 0
    FAIL = 1
    BAD_INPUT = 2
    NOT_RUN = 3
    UNSUPPORTED = (3, "UNSUPPORTED")
    VACUOUS = 4
    CRASH = 5
    NONDETERMINISTIC = 6

    @property
    def exit_code(self) -> int:
        return self.value if isinstance(self.value, int) else self.value[0]


GRAVEST_FIRST = (
    Verdict.CRASH,
    Verdict.BAD_INPUT,
    Verdict.NONDETERMINISTIC,
    Verdict.FAIL,
    Verdict.VACUOUS,
    Verdict.NOT_RUN,
    Verdict.UNSUPPORTED,
    Verdict.PASS,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch of one subject. record: the case of the program's record (docs/gates.md#record), None if nothing could
    be judged. operator: "layer"; a function that routes has a case "route" before it, too. subject: its name."""

    tokens: int
    verdict: Verdict
    reason: str
    record: typing.Optional[typing.Dict[str, typing.Any]] = None
    operator: str = "layer"
    subject: str = ""

    @property
    def reproduce(self) -> str:
        """The command line that judges this case again, of one that does not pass; "" if nothing could be judged."""
        return "" if self.record is None or self.verdict is Verdict.PASS else str(self.record["repro"])


@dataclasses.dataclass(frozen=True)
class Report:
    """What `verify` returns. subject: the name, or names; verdict: the gravest of the cases'; text: the program's tables,
    for people."""

    subject: str
    fixture: str
    cases: typing.Tuple[Case, ...]
    text: str

    @property
    def verdict(self) -> Verdict:
        found = {case.verdict for case in self.cases}
        return next((verdict for verdict in GRAVEST_FIRST if verdict in found), Verdict.NOT_RUN)

    @property
    def passed(self) -> bool:
        """True if something was judged and everything passed."""
        return self.verdict is Verdict.PASS

    def check(self) -> "Report":
        """Returns the report, or raises VerificationError if the verdict is not PASS."""
        if not self.passed:
            raise VerificationError(str(self))
        return self

    def __str__(self) -> str:
        lines = [f"{self.subject} on {self.fixture}: {self.verdict.name}"]
        several = len({case.subject for case in self.cases}) > 1
        for c in self.cases:
            whose = f"{c.subject}, " if several else ""
            which = ", route" if c.operator == "route" else ""
            lines.append(f"  {whose}batch {c.tokens}{which}: {c.verdict.name}{': ' if c.reason else ''}{c.reason}")
        return "\n".join(lines + ([self.text.rstrip()] if self.text else []))
