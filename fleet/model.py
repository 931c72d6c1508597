"""What every part of the stack config is made of: a frozen model, and the way to say that a rule does not hold."""

from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from fleet.problems import Loc, Problem, config_path


@dataclass(frozen=True)
class Broken:
    """A rule between values that does not hold. `also` are the other values that took part in it."""

    code: str
    loc: Loc
    seen: str
    wanted: str
    hint: str
    also: tuple[Loc, ...] = ()

    def problem(self) -> Problem:
        """The same, with the path as the operator writes it."""
        return Problem(self.code, config_path(self.loc), self.seen, self.wanted, self.hint)

    def under(self, *prefix: str | int) -> "Broken":
        """The same, seen from the model that holds this one."""
        return replace(self, loc=(*prefix, *self.loc), also=tuple((*prefix, *loc) for loc in self.also))


class Model(BaseModel):
    """A set of keys, written in camelCase. Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True)
