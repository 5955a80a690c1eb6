"""Applies the decisions: requests in, for every step the answers to run with their pages in place out.

Holds who waits and who runs. A preempted answer gives its pages back and waits in its old place; its tokens are
computed again later, so that it goes on as if nothing had been.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from itertools import count

from headrace.llm.kv import KvCache, PageTable
from headrace.llm.scheduler.decide import Newcomer, State, admission, decide
from headrace.llm.scheduler.pace import Pace
from headrace.llm.scheduler.queue import FairQueue
from headrace.llm.sequence import Answer, Phase, Request
from headrace.llm.settings import EngineSettings
from headrace.llm.writer import Writer

__all__ = ["Scheduler"]


class Scheduler:
    """Not thread-safe.

    Args:
        copy_page: Copies what one page holds to another.
        admitted: Told of each request once, when it is about to run.
    """

    def __init__(
        self,
        kv: KvCache,
        settings: EngineSettings,
        copy_page: Callable[[int, int], None],
        admitted: Callable[[Request], None],
    ) -> None:
        self.kv = kv
        self._pace = Pace(settings.slack)
        self.preemptions = 0
        self.running: list[Answer] = []
        self.waiting: FairQueue[Answer] = FairQueue()
        self._settings = settings
        self._copy_page = copy_page
        self._admitted = admitted
        self._slots = list(range(settings.max_batch - 1, -1, -1))
        self._arrivals = count()

    @property
    def busy(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    @property
    def prompt_share(self) -> int:
        """Prompt tokens that a step may hold now without holding up the answers being generated."""
        n_generating = self._n_generating
        n_prompts = len(self.running) - n_generating
        return self._pace.prompt_share(n_generating, n_prompts, self._settings.step_tokens)

    @property
    def _n_generating(self) -> int:
        return sum([answer.pending == 1 for answer in self.running])

    def answers(self) -> Iterator[Answer]:
        """All that have not ended."""
        yield from self.running
        yield from self.waiting

    def add(self, request: Request) -> None:
        """Queue the first answer of a request; it computes the prompt for all."""
        request.arrival = next(self._arrivals)
        self.waiting.add(self._answer(request, request.writers[0], self.kv.table(request.names)))

    def schedule(self, now_s: float) -> list[tuple[Answer, int]]:
        """Admit, preempt, and choose what the next step computes, prompts first; pages are taken and copied. Empty:
        nothing can run before somebody gives pages back."""
        self._admit(now_s)
        while True:
            plan = decide(self._state())
            if plan.preempt is None:
                break
            self._preempt(plan.preempt)
        run = [(answer, answer.alike(n)) for answer, n in plan.run]
        run.sort(key=lambda job: job[0].computed >= job[0].n_prompt)
        for answer, n in run:
            if answer.guesses:
                answer.guesses = answer.guesses[: n - 1]
            copy = answer.table.grow(answer.computed, answer.computed + n)
            if copy is not None:
                self._copy_page(*copy)
            self.waiting.charge(answer, n)
        return run

    def observe(self, run: list[tuple[Answer, int]], step_s: float) -> None:
        """The step took so long; to be told before its tokens are noted."""
        generating = [n for answer, n in run if answer.pending == 1]
        n_prompt = sum(n for _, n in run) - sum(generating)
        self._pace = self._pace.observe(len(generating), n_prompt, step_s)

    def computed(self, answer: Answer, n_tokens: int) -> None:
        """The keys and values of its next `n_tokens`, all right, are there."""
        answer.computed += n_tokens
        self.kv.commit(answer.table, answer.tokens, answer.computed, answer.n_prompt)

    def branch(self, answer: Answer) -> list[Answer]:
        """The other answers of a request whose prompt is computed now, sharing its pages. Those for whom no slot is
        free wait as if preempted."""
        others = [self._answer(answer.request, w, self.kv.fork(answer.table)) for w in answer.request.writers[1:]]
        for other in others:
            if self._slots:
                self._start(other)
                other.computed = answer.computed
            else:
                other.table.release()
                self.waiting.add(other)
        return others

    def end(self, answer: Answer) -> None:
        """It will not run again: its pages are free, or stay cached for others."""
        if answer.phase is Phase.RUNNING:
            self._stop(answer)
        elif answer.phase is Phase.WAITING:
            self.waiting.remove(answer)
        answer.phase = Phase.ENDED
        answer.request.answers.remove(answer)

    def _state(self) -> State[Answer]:
        room = self._settings.guesses - self._n_generating
        for answer in self.running:
            may_guess = room > 0 and answer.pending == 1 and len(answer.tokens) > answer.n_prompt
            answer.guesses = answer.writer.guess(room) if may_guess else ()
        return State(
            running=self.running,
            pages=self.kv.pool.available,
            budget=self._settings.step_tokens,
            prompt_share=self.prompt_share,
            guess_share=self._settings.guesses,
        )

    def _admit(self, now_s: float) -> None:
        while (first := self.waiting.first()) is not None:
            usable = len(first.tokens) - 1  # the last one is computed in any case: what follows it is wanted
            newcomer = Newcomer(first.priority, first.table.cost(len(first.tokens), usable))
            verdict = admission(newcomer, self.running, self.kv.pool.available, len(self._slots))
            if verdict == "wait":
                return
            if verdict == "preempt":
                self._preempt(self.running[-1])
                continue
            answer = self.waiting.take()
            self._start(answer)
            answer.computed = answer.table.reuse(usable)
            if not answer.request.admitted_s:
                answer.request.admitted_s = now_s
                answer.request.cached_tokens = answer.computed
                self._admitted(answer.request)

    def _preempt(self, answer: Answer) -> None:
        self.preemptions += 1
        self._stop(answer)
        answer.phase = Phase.WAITING
        self.waiting.add(answer)

    def _answer(self, request: Request, writer: Writer, table: PageTable) -> Answer:
        answer = Answer(request, writer, table)
        request.answers.append(answer)
        return answer

    def _start(self, answer: Answer) -> None:
        answer.phase = Phase.RUNNING
        answer.slot = self._slots.pop()
        insort(self.running, answer, key=lambda other: (-other.priority, other.arrival))

    def _stop(self, answer: Answer) -> None:
        answer.table.release()
        answer.computed, answer.guesses = 0, ()
        self._slots.append(answer.slot)
        answer.slot = -1
        self.running.remove(answer)
