"""A shop on Flask and SQLAlchemy: an order is stored, and after the commit a job sends the receipt.

flask --app flask_shop run                    # in one terminal
flask --app flask_shop palermo worker         # in another
curl -d email=a@example.com -d total=30 -d card=good http://127.0.0.1:5000/orders
"""

import os
from pathlib import Path
from typing import Any

from flask import Flask, current_app, g, redirect, request, session
from flask.typing import ResponseReturnValue
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import palermo
from palermo.contrib.flask import Palermo
from palermo.contrib.sqlalchemy import enqueue_after_commit
from palermo.webui import Role, User


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order, and whether its receipt was sent."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    total: Mapped[int]
    receipt_sent: Mapped[bool] = mapped_column(default=False)


class CardRefused(Exception):
    """The bank says no."""


jobs = Palermo()


def create_app(**config: Any) -> Flask:
    """The application; `config` is for tests."""
    folder = Path(os.environ.get("SHOP_DATA", "."))
    app = Flask(__name__)
    app.config.from_mapping(
        SECRET_KEY=os.environ.get("SECRET_KEY", "a secret of this example"),
        DATABASE=f"sqlite:///{folder}/shop.db",
        # The variable PALERMO_URL is stronger: on RabbitMQ it is PALERMO_URL=amqp://….
        PALERMO={"url": f"sqlite:///{folder}/jobs.db"},
        STAFF={"ann": "the password of this example"},
    )
    app.config.update(config)
    app.extensions["engine"] = create_engine(app.config["DATABASE"])
    Base.metadata.create_all(app.extensions["engine"])
    jobs.init_app(app)
    jobs.mount_pages(app, "/ops/jobs", auth=staff)
    app.add_url_rule("/orders", view_func=create_order, methods=["POST"])
    app.add_url_rule("/login", view_func=login, methods=["GET", "POST"])
    app.teardown_appcontext(close_session)
    return app


def database() -> Session:
    """The session of this request, or of this job: both have an application context of their own."""
    if "session" not in g:
        g.session = Session(current_app.extensions["engine"])
    found: Session = g.session
    return found


def close_session(error: BaseException | None) -> None:
    """Give the connection back at the end of a request, and of a job."""
    if "session" in g:
        g.session.close()


@palermo.job(queue="mail", retries=5)
def send_receipt(order_id: int) -> None:
    """Send the receipt of an order. A job may run twice: an order whose receipt was sent is left alone."""
    order = database().get_one(Order, order_id)
    if not order.receipt_sent:
        current_app.logger.warning("mail to %s: you paid %d", order.email, order.total)
        order.receipt_sent = True
        database().commit()


def create_order() -> ResponseReturnValue:
    """Store an order and have its receipt sent; if the card is refused, do neither."""
    try:
        with database().begin():
            order = Order(email=request.form["email"], total=int(request.form["total"]))
            database().add(order)
            database().flush()  # gives the order its id
            enqueue_after_commit(database(), send_receipt, order.id)
            number = order.id
            charge(request.form["card"])
    except CardRefused as error:
        return {"error": str(error)}, 402
    return {"order": number}, 201


def charge(card: str) -> None:
    """Take the money. Raises CardRefused."""
    if card == "expired":
        raise CardRefused("the card has expired")


def login() -> ResponseReturnValue:
    """Sign a member of the staff in. A real shop has a page with a form, and hashes of passwords."""
    name, password = request.form.get("name", ""), request.form.get("password")
    if password is None or current_app.config["STAFF"].get(name) != password:
        return "Post a name and a password.", 401
    session["staff"] = name
    return redirect("/ops/jobs/")


def staff() -> User | ResponseReturnValue:
    """The user of the pages of jobs: a member of the staff. Others are sent to the login page."""
    return User(session["staff"], Role.ADMIN) if "staff" in session else redirect("/login")
