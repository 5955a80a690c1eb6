"""Loading a backend on a thread of its own, in bounded time: a load that hangs holds up neither others nor the exit."""

from __future__ import annotations

import asyncio
import time
from threading import Lock, Thread

from headrace.errors import HeadraceError, LoadFailed
from headrace.serve.protocol import Backend

__all__ = ["load_backend"]


class _Load:
    """One load and warm-up. Whoever comes last of the thread's end and the giving up frees a backend nobody wants."""

    def __init__(self, name: str, backend: Backend) -> None:
        self._name = name
        self._backend = backend
        self._lock = Lock()
        self._ended = False
        self._unwanted = False

    def run(self) -> float:
        """CPU seconds of the warm-up run. Raises `LoadFailed`; nothing stays acquired then."""
        try:
            self._backend.load()
            start_s = time.thread_time()
            self._backend.warm()
            warm_s = time.thread_time() - start_s
        except BaseException as error:  # user code may raise anything, even SystemExit
            self._backend.free()
            if isinstance(error, HeadraceError):
                raise
            raise LoadFailed(f"model {self._name!r}: {type(error).__name__}: {error}") from error
        with self._lock:
            self._ended = True
            unwanted = self._unwanted
        if unwanted:
            self._backend.free()
        return warm_s

    def give_up(self) -> None:
        with self._lock:
            self._unwanted = True
            ended = self._ended
        if ended:
            self._backend.free()


async def load_backend(name: str, backend: Backend, timeout_s: float) -> float:
    """Load and warm `backend`; returns the CPU seconds of the warm-up run.

    Raises `LoadFailed`, also after `timeout_s`; the thread is then left behind, and frees the backend if it ever ends.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[float] = loop.create_future()
    load = _Load(name, backend)

    def tell(warm_s: float, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(warm_s)

    def work() -> None:
        warm_s, failure = 0.0, None
        try:
            warm_s = load.run()
        except BaseException as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, warm_s, failure)

    Thread(target=work, name=f"load-{name}", daemon=True).start()
    try:
        return await asyncio.wait_for(future, timeout_s)
    except TimeoutError:
        load.give_up()
        raise LoadFailed(f"model {name!r}: not loaded within {timeout_s:g} s (`load_timeout_s`)") from None
    except asyncio.CancelledError:
        load.give_up()
        raise
