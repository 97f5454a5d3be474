"""A shop on FastAPI and SQLAlchemy: an order and the job that sends its receipt are stored together, in an outbox.

    uvicorn fastapi_shop:app                      # in one terminal
    palermo worker fastapi_shop                   # in another, with the same PALERMO_URL
    curl -d '{"email": "a@example.com", "total": 30, "card": "good"}' -H 'Content-Type: application/json' \
        http://127.0.0.1:8000/orders
"""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.requests import Request

import palermo
from palermo.contrib.fastapi import Palermo, PalermoClient
from palermo.contrib.sqlalchemy import Outbox
from palermo.webui import Role, User

engine = create_engine(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))

#: The tokens of the staff, and their names. A real shop asks its own users.
STAFF = {os.environ.get("STAFF_TOKEN", secrets.token_urlsafe()): "ann"}


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order, and whether its receipt was sent."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    total: Mapped[int]
    receipt_sent: Mapped[bool] = mapped_column(default=False)


#: One more table, for jobs that are stored and not yet enqueued.
outbox = Outbox(Base.metadata)


@palermo.job(every=5, unique="until_done", queue="outbox")
def sweep_outbox() -> None:
    """Enqueue the jobs that a commit left in the outbox. One worker runs it every five seconds."""
    outbox.sweep(engine)


@palermo.job(queue="mail", retries=5)
def send_receipt(order_id: int) -> None:
    """Send the receipt of an order. A job may run twice: an order whose receipt was sent is left alone."""
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id)
        if not order.receipt_sent:
            print(f"mail to {order.email}: you paid {order.total}")
            order.receipt_sent = True


def staff(request: Request) -> User | None:
    """The user of the pages of jobs: who has a token."""
    name = STAFF.get(request.headers.get("authorization", "").removeprefix("Bearer "))
    return None if name is None else User(name, Role.ADMIN)


jobs = Palermo()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
    """Make the tables, and let Palermo's client live as long as the application."""
    Base.metadata.create_all(engine)
    async with jobs.lifespan(app) as state:
        yield state


app = FastAPI(lifespan=lifespan)
jobs.mount_pages(app, "/ops/jobs", auth=staff, hosts=["shop.example.com"])


class NewOrder(BaseModel):
    """What a customer sends."""

    email: str
    total: int
    card: str


@app.post("/orders", status_code=201)
def create_order(new: NewOrder) -> dict[str, Any]:
    """Store an order, and the job that sends its receipt; if the card is refused, neither."""
    with Session(engine) as session, session.begin():
        order = Order(email=new.email, total=new.total)
        session.add(order)
        session.flush()  # gives the order its id
        job = outbox.enqueue(session, send_receipt, order.id)
        if new.card == "expired":
            raise HTTPException(402, "the card has expired")
        return {"order": order.id, "job": job.id}


@app.get("/jobs/{id}")
async def job_status(id: str, client: PalermoClient) -> dict[str, str]:
    """Where a job is."""
    return {"status": str(await client.job_by_id(id).status_async())}
