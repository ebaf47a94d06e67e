"""One question with a number for an answer, and what to say to an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said to an answer; ``right`` None: nothing was answered."""

    right: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Exercise:
    """A question; ``right``: its answer as computed; ``tolerance``: relative; ``wrong``: typical answers and what went
    wrong.
    """

    key: str
    question: str
    right: float
    unit: str
    because: str
    wrong: tuple[tuple[float, str], ...] = ()
    tolerance: float = 0.01

    def check(self, answer: float | None) -> Verdict:
        """Return the verdict on an answer."""
        if answer is None:
            return Verdict(None, "")
        if self._near(answer, self.right):
            return Verdict(True, f"Right: {self.right:,.6g} {self.unit}. {self.because}")
        for value, why in self.wrong:
            if self._near(answer, value):
                return Verdict(False, f"Not quite: {why}")
        return Verdict(False, f"Not {answer:,.6g} {self.unit}. Think about it once more, or try it out above.")

    def _near(self, answer: float, value: float) -> bool:
        return abs(answer - value) <= self.tolerance * abs(value) + 1e-9
