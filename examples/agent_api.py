"""Serve agents over HTTP: a FastAPI application around one agent pool.

`python examples/agent_api.py` listens on loopback until Ctrl-C or SIGTERM, then drains. Try it with
`curl -X POST 'http://127.0.0.1:8000/api/agent/run?session_id=s1&query=hello'`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from functools import partial
from math import ceil
from typing import Annotated, Any

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.exceptions import RequestValidationError
    from pydantic import BaseModel, ConfigDict, StringConstraints

    from poolhand import AgentPool, Refused, UsageError, log_events, pool_lifespan
    from poolhand.errors import Draining
except ModuleNotFoundError as missing:
    sys.exit(
        f"This example needs {missing.name}, which is not installed here: "
        "pip install poolhand fastapi uvicorn"
    )

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class OfflineAgent:
    """An agent that waits for a while and answers; yours would call a model here."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def run(self, *, session_id: str, payload: dict[str, str]) -> str:
        await asyncio.sleep(self._seconds)
        if payload["query"] == "fail":
            raise ValueError("this agent was asked to fail")
        return f"You asked: {payload['query']}"


class Question(BaseModel):
    """The fields of a request, in its URL or in its body."""

    model_config = ConfigDict(extra="forbid")
    session_id: Text | None = None
    query: Text | None = None


def create_app(pool: AgentPool, **lifespan: Any) -> FastAPI:
    """Return the application; it starts the pool when it starts and drains it when it ends."""
    app = FastAPI(title="Agents", lifespan=pool_lifespan(pool, **lifespan))

    @app.post("/api/agent/run")
    async def run(
        session_id: Text | None = None, query: Text | None = None, body: Question | None = None
    ) -> dict[str, Any]:
        in_address = Question(session_id=session_id, query=query)
        asked = only_one(in_address, body or Question())
        try:
            # Do not block in a full pool: an HTTP caller wants an answer at once.
            answer = await pool.submit(asked.pop("session_id"), asked, block=False)
        except Refused as refusal:
            raise busy(refusal) from None
        if answer["status"] == "error":
            # Only the type: the message, which is in the log, may hold data not meant for callers.
            answer["error"] = answer["error"].partition(":")[0]
        return answer

    @app.get("/api/agent/health")
    async def health() -> dict[str, Any]:
        return pool.health_check()

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> Response:
        # Without the input, which may not even be valid text.
        faults = [{key: one[key] for key in ("type", "loc", "msg")} for one in error.errors()]
        return Response(json.dumps({"detail": faults}), 422, media_type="application/json")

    return app


def only_one(in_address: Question, in_body: Question) -> dict[str, str]:
    """Return the fields of a request; a field that is given twice must be equal in both places."""
    faults, asked = [], {}
    for name in Question.model_fields:
        given = {getattr(in_address, name), getattr(in_body, name)} - {None}
        if len(given) == 1:
            asked[name] = given.pop()
        else:
            kind, text = (
                ("conflict", "given twice, differently") if given else ("missing", "missing")
            )
            faults.append({"type": kind, "loc": ("query", name), "msg": f"{name} is {text}"})
    if faults:
        raise RequestValidationError(faults)
    return asked


def busy(refusal: Refused) -> HTTPException:
    state = "is stopping" if isinstance(refusal, Draining) else "at capacity"
    wait = {"Retry-After": str(max(1, ceil(refusal.retry_after or 0)))}
    return HTTPException(503, f"Agent pool {state}. Retry later.", headers=wait)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve offline agents over HTTP, on loopback.")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port")
    parser.add_argument("--workers", type=int, default=4, help="agents that run at the same time")
    parser.add_argument("--queue", type=int, default=16, help="requests that may wait for an agent")
    parser.add_argument("--think", type=float, default=0.5, help="seconds that an answer takes")
    given = parser.parse_args()
    log_events()
    # uvicorn raises the signal again when it is done; a drained server has ended well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        agents = AgentPool(given.workers, given.queue, partial(OfflineAgent, given.think), "agents")
    except UsageError as error:
        parser.error(str(error))
    uvicorn.run(create_app(agents), port=given.port, timeout_graceful_shutdown=30)


if __name__ == "__main__":
    main()
