"""Assignments of a bash file, read and never executed.

What is read is what such files are made of: `NAME=value` and `NAME+=value`, several on a line, with or without
`export`, quotes, backslashes, comments, `~`, and `$NAME`, `${NAME}`, `${NAME:-other}` of names that are known.
Everything else is told with its line, and the names that it assigns count as unknown from there on. What else a command
may set cannot be told.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
BLANKS = " \t"
ENDS = " \t\n;"  # of a word
OPERATORS = "&|<>()"
OPENERS = {"if", "for", "while", "until", "case", "select", "{", "function"}
CLOSERS = {"fi", "done", "esac", "}"}
WORD = re.compile(r"[^\s;&|<>()]*")
COMMANDS = re.compile(r";|&&|\|\||\||\n|\bthen\b|\bdo\b|\belse\b")
HARMLESS = re.compile(r"(set [-+]a|:|true)[ \t]*(#.*)?")


class BashError(Exception):
    """Bash itself would refuse the file, so that nothing in it is certain; the message says where and why."""


class _UnreadableError(Exception):
    """A statement is none of the readable ones; the message says what is in it."""


@dataclass(frozen=True)
class Value:
    """What a variable is in the end, and the line that says so."""

    text: str
    line: int


@dataclass(frozen=True)
class Unread:
    """A statement that was not understood: what it is, and the variables that it may set."""

    line: int
    what: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Script:
    """All of a file. `carriage_returns`: its lines end in CR LF, and bash would keep the CR in every value."""

    values: Mapping[str, Value]
    unread: tuple[Unread, ...]
    carriage_returns: bool


def read(text: str, known: Mapping[str, str]) -> Script:
    """Read a file. `known` are variables that are set before it; HOME is what `~` stands for.

    Raises BashError where a quote is never closed, or a `;` ends nothing.
    """
    plain = text.replace("\r\n", "\n")
    return _Reader(plain, known).script(carriage_returns=plain != text)


class _Reader:
    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self._text, self._at = text, 0
        self._known = dict(known)
        self._values: dict[str, Value] = {}
        self._unread: list[Unread] = []
        self._unknown: set[str] = set()
        self._depth = 0  # of if, for, while, functions
        self._exported = False  # whether the statement begins with `export`

    def script(self, *, carriage_returns: bool) -> Script:
        while self._at < len(self._text):
            if self._peek() in f"{BLANKS}\n":
                self._at += 1
            elif self._peek() == "#":
                self._at = self._line_end()
            elif self._peek() == ";":
                raise BashError(f"line {self._line()}: nothing stands before the `;`")
            else:
                self._statement()
                self._at += self._peek() == ";"
        return Script(self._values, tuple(self._unread), carriage_returns)

    def _peek(self, ahead: int = 0) -> str:
        """The character there; a line end behind the last one."""
        at = self._at + ahead
        return self._text[at] if at < len(self._text) else "\n"

    def _line(self, at: int | None = None) -> int:
        return self._text.count("\n", 0, self._at if at is None else at) + 1

    def _line_end(self) -> int:
        found = self._text.find("\n", self._at)
        return len(self._text) if found < 0 else found

    def _statement(self) -> None:
        begin, line, self._exported = self._at, self._line(), False
        harmless = HARMLESS.match(self._text[begin : self._line_end()])
        if harmless and begin + harmless.end() == self._line_end():
            self._at = self._line_end()
            return
        try:
            found = self._assignments()
            why = "part of a condition, loop or function" if self._depth else None
        except _UnreadableError as error:
            found, why = {}, str(error)
        if why is None:
            self._values.update(found)
        else:
            self._at = begin
            self._give_up(line, why)

    def _give_up(self, line: int, why: str) -> None:
        """Go behind a statement that is not understood; what it may set is not known any more."""
        names = tuple(dict.fromkeys(name for name, _ in ASSIGNED.findall(self._skip())))
        self._unread.append(Unread(line, why, names))
        for name in names:
            self._values.pop(name, None)
            self._known.pop(name, None)
            self._unknown.add(name)

    def _assignments(self) -> dict[str, Value]:
        """The assignments of one statement; later ones see earlier ones. Without effect where it is unreadable."""
        before, unknown = dict(self._known), set(self._unknown)
        try:
            return dict(self._each_assignment())
        except _UnreadableError:
            self._known, self._unknown = before, unknown
            raise

    def _each_assignment(self) -> Iterator[tuple[str, Value]]:
        first, exported = True, dict[str, str]()  # `export` sees all of its words before it sets any
        while True:
            self._blanks()
            if self._peek() in "\n;#":
                for name, text in exported.items():
                    self._set(name, text)
                return
            match, line = ASSIGNED.match(self._text, self._at), self._line()
            if match:
                self._at = match.end()
                text, name = self._value(), match[1]
                if match[2]:
                    text = (exported[name] if name in exported else self._lookup(name)) + text
                if self._exported:
                    exported[name] = text
                else:
                    self._set(name, text)
                yield name, Value(text, line)
                first = False
                continue
            word = WORD.match(self._text, self._at)
            assert word is not None
            if (first and word[0] == "export") or (not first and NAME.fullmatch(word[0]) and self._exported):
                self._at = word.end()  # `export NAME` changes no value
                self._exported = True
                first = False
                continue
            # The word itself is not told: it may be the rest of a secret that lacks its quotes.
            if not word[0]:
                raise _UnreadableError(f"a command with `{self._peek()}`")
            raise _UnreadableError("a command" if first else "a command behind a value; blanks in a value need quotes")

    def _set(self, name: str, text: str) -> None:
        self._known[name] = text
        self._unknown.discard(name)

    def _blanks(self) -> None:
        while self._peek() in BLANKS or (self._peek() == "\\" and self._peek(1) == "\n"):
            if self._at >= len(self._text):
                return
            self._at += 1 if self._peek() in BLANKS else 2

    def _value(self) -> str:
        """A word from here on, without quotes."""
        text, begins = "", True  # the word, or a part of it behind a colon
        if self._peek() == "(":
            raise _UnreadableError("a list")
        while self._at < len(self._text) and self._peek() not in ENDS:
            here = self._peek()
            if here in OPERATORS:
                raise _UnreadableError(f"a command with `{here}`")
            if here == "~" and begins:
                text += self._home()
            elif here == "'":
                text += self._single()
            elif here == '"':
                text += self._double()
            elif here == "\\":
                self._at += 2
                if self._text[self._at - 1 : self._at] == "\n":
                    continue
                text += self._text[self._at - 1 : self._at]
            elif here == "$" and self._peek(1) in "'\"":
                raise _UnreadableError("a quote that begins with `$`")
            else:
                text += self._piece()
            begins = here == ":"
        return text

    def _home(self) -> str:
        self._at += 1
        if self._peek() not in f"{ENDS}/:":
            raise _UnreadableError("somebody's home, `~name`")
        return self._lookup("HOME")

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise BashError(f"line {self._line()}: a quote is never closed")
        text, self._at = self._text[self._at + 1 : end], end + 1
        return text

    def _double(self) -> str:
        text, begin = "", self._at
        self._at += 1
        while self._at < len(self._text):
            here = self._peek()
            if here == '"':
                self._at += 1
                return text
            if here == "\\" and self._peek(1) in '$`"\\\n':
                text += "" if self._peek(1) == "\n" else self._peek(1)
                self._at += 2
            else:
                text += self._piece()
        raise BashError(f"line {self._line(begin)}: a quote is never closed")

    def _piece(self) -> str:
        """A character, or what stands for a `$NAME`, in or outside of double quotes."""
        here = self._peek()
        if here == "`" or (here == "$" and self._peek(1) == "("):
            raise _UnreadableError("the output of a command")
        self._at += 1
        if here != "$":
            return here
        if self._peek() == "{":
            return self._braces()
        name = NAME.match(self._text, self._at)
        if self._text.startswith("\\\n", name.end() if name else self._at):
            raise _UnreadableError("a name that may go on in the next line")
        if name:
            self._at = name.end()
            return self._lookup(name[0])
        if self._peek() in "@*#?-$!0123456789":
            raise _UnreadableError(f"`${self._peek()}`")
        return here

    def _braces(self) -> str:
        """`{NAME}`, `{NAME-other}` or `{NAME:-other}`."""
        match = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:?-|\})").match(self._text, self._at)
        if match is None:
            raise _UnreadableError("an expansion other than `${NAME}` and `${NAME:-other}`")
        self._at, name = match.end(), match[1]
        if match[2] == "}":
            return self._lookup(name)
        other = ""
        while self._peek() != "}":
            if self._at >= len(self._text) or self._peek() in "\n'\"\\~":
                raise _UnreadableError("an expansion with quotes in it")
            other += self._piece()
        self._at += 1
        if name not in self._known and name not in self._unknown:
            return other
        return self._lookup(name) or (other if match[2] == ":-" else "")

    def _lookup(self, name: str) -> str:
        if name not in self._known:
            raise _UnreadableError(f"`${name}`, which is not known here")
        return self._known[name]

    def _skip(self) -> str:
        """Go behind a statement that is not understood, and keep count of what it opens and closes."""
        begin, bare = self._at, ""
        while self._at < len(self._text) and self._peek() != "\n":
            here = self._peek()
            if here == "'":
                self._single()
            elif here == '"':
                self._closing_quote()
            elif here == "#" and (not bare or bare[-1] in ENDS):
                self._at = self._line_end()
            elif self._text.startswith("<<", self._at) and not self._text.startswith("<<<", self._at):
                self._unread.append(Unread(self._line(), "a here-document: nothing behind it was read", ()))
                self._at = len(self._text)
            else:
                bare += here
                self._at += 2 if here == "\\" else 1
        for command in COMMANDS.split(bare):
            words = command.split()
            opened = bool(words) and (words[0] in OPENERS or "{" in words[1:])
            self._depth = max(0, self._depth + opened - (bool(words) and words[0] in CLOSERS))
        return self._text[begin : self._at]

    def _closing_quote(self) -> None:
        begin = self._at
        self._at += 1
        while self._at < len(self._text) and self._peek() != '"':
            self._at += 2 if self._peek() == "\\" else 1
        if self._at >= len(self._text):
            raise BashError(f"line {self._line(begin)}: a quote is never closed")
        self._at += 1
