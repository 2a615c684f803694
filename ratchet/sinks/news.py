"""What sinks are told, and which of it counts after a run went back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers of one (incarnation, step)."""

    series: Literal["step", "evaluation"]
    incarnation: int
    step: int
    at: float
    """Epoch seconds."""
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Restart:
    """A new incarnation goes on after `step`: what older ones did beyond it is lost, and trained again."""

    incarnation: int
    step: int
    at: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that went wrong."""

    id: str
    """The same for the same thing, however often it is told."""
    kind: Literal["incident", "failed"]
    run: str
    incarnation: int
    at: float
    message: str
    data: dict[str, JsonValue]


News = Point | Restart | Alarm


class Course(BaseModel):
    """How far a sink has followed a run: where its incarnations began, and the last step of every series."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    restarts: dict[int, int] = {}
    """Incarnation -> the step it went on after."""
    last: dict[str, int] = {}

    def takes(self, news: News, *, takes_back: bool) -> bool:
        """Whether it is to be written. A point counts if no newer incarnation went back behind it, and in a
        sink that cannot take anything back only the first one of a step."""
        if not isinstance(news, Point):
            return True
        if any(n > news.incarnation and news.step > step for n, step in self.restarts.items()):
            return False
        return takes_back or news.step > self.last.get(news.series, -1)

    def after(self, news: News) -> "Course":
        match news:
            case Point():
                return self.model_copy(update={"last": {**self.last, news.series: news.step}})
            case Restart():
                return self.model_copy(update={"restarts": {**self.restarts, news.incarnation: news.step}})
            case Alarm():
                return self

    def choose(self, page: Sequence[News], *, takes_back: bool) -> tuple[list[News], "Course"]:
        """What of a page is to be written, and the course after it."""
        chosen: list[News] = []
        course = self
        for news in page:
            if course.takes(news, takes_back=takes_back):
                chosen.append(news)
                course = course.after(news)
        return chosen, course
