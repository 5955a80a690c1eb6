"""What the engine knows of a request and of each of its answers, from arrival to the last chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from headrace.core.context import Context
from headrace.errors import HeadraceError
from headrace.llm.inbox import Inbox
from headrace.llm.kv import PageTable
from headrace.llm.params import MAX_N
from headrace.llm.writer import Writer

__all__ = ["Answer", "Phase", "Request"]


class Phase(Enum):
    """Where an answer is: new ones and preempted ones wait, running ones hold pages."""

    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


class Request:
    """A prompt and what is to come of it. Made on the caller's thread, then the engine's; `cancel` from any.

    Args:
        prompt: Its tokens.
        names: Names of its full pages.
        writers: One for each answer.
        notify: Told once when somebody cancels.
        now_s: `time.perf_counter()`.

    Attributes:
        inbox: Where its chunks go.
        arrival: Its place in the order of arrival.
        answers: Those that have not ended. The first one computes the prompt, then the others branch off.
        cancelled: Whether it is to end; `error` is why, None when the reader himself wants no more.
        submitted_s, admitted_s, first_s: When it was made, first ran, and had its first token; 0 before.
        cached_tokens: Tokens of the prompt that were found in the cache.
    """

    __slots__ = (
        "_notify",
        "admitted_s",
        "answers",
        "arrival",
        "cached_tokens",
        "cancelled",
        "ctx",
        "error",
        "first_s",
        "inbox",
        "names",
        "prompt",
        "submitted_s",
        "undo",
        "writers",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        names: list[bytes],
        writers: Sequence[Writer],
        ctx: Context,
        notify: Callable[[Request], None],
        now_s: float,
    ) -> None:
        self.prompt = prompt
        self.names = names
        self.writers = writers
        self.ctx = ctx
        self.inbox = Inbox(len(writers))
        self.answers: list[Answer] = []
        self.cancelled = False
        self.error: HeadraceError | None = None
        self.submitted_s = now_s
        self.admitted_s = self.first_s = 0.0
        self.cached_tokens = 0
        self.arrival = 0
        self._notify = notify
        self.undo = ctx.on_cancel(self.cancel)

    def cancel(self, error: HeadraceError | None = None) -> None:
        """End all answers within a step. Takes no lock, so that a finaliser may call it anywhere."""
        if not self.cancelled and not self.inbox.ended:
            self.error = error
            self.cancelled = True
            self._notify(self)


class Answer:
    """One sequence of tokens: the prompt and what is written after it.

    Attributes:
        tokens: All known so far.
        n_prompt: Of these, the prompt's.
        computed: Of these, those whose keys and values are in `table`.
        guesses: What may follow `tokens`, for the next step only.
        arrival: Unique; its place in the order of arrival.
        slot: Its row among the running ones, -1 while it waits.
        last_s: When it last had tokens, 0 before the first.
    """

    __slots__ = (
        "arrival",
        "computed",
        "guesses",
        "last_s",
        "n_prompt",
        "phase",
        "priority",
        "request",
        "slot",
        "table",
        "tenant",
        "tokens",
        "writer",
    )

    def __init__(self, request: Request, writer: Writer, table: PageTable) -> None:
        self.request = request
        self.writer = writer
        self.table = table
        self.tokens = list(request.prompt)
        self.n_prompt = len(self.tokens)
        self.computed = 0
        self.guesses: Sequence[int] = ()
        self.phase = Phase.WAITING
        self.priority = request.ctx.priority
        self.tenant = request.ctx.tenant
        self.arrival = request.arrival * MAX_N + writer.index
        self.slot = -1
        self.last_s = 0.0

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def n_guesses(self) -> int:
        return len(self.guesses)

    def alike(self, n_tokens: int) -> int:
        """Of the next `n_tokens`, those that are all of the prompt or all not, which is what one step computes."""
        left = self.n_prompt - self.computed
        return min(n_tokens, left) if left > 0 else n_tokens

    def needed(self, n_tokens: int) -> int:
        return self.table.needed(self.computed, self.computed + n_tokens)

    def room(self, pages: int) -> int:
        return self.table.room(self.computed, pages)
