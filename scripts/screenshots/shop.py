"""The jobs of a shop, some of which fail: what is seen on the screenshots."""

import json
import random
import time

import palermo


class CardDeclined(Exception):
    """The bank said no."""


class BankBusy(Exception):
    """The bank said to come again."""


@palermo.job(queue="mail", name="shop.mail.SendReceipt")
def send_receipt(to: str, *, order: int, subject: str = "Your order") -> None:
    time.sleep(random.uniform(0.02, 0.2))
    if order % 37 == 0:
        deliver(to)


def deliver(to: str) -> None:
    raise ConnectionRefusedError(111, f"Connection refused by mx.{to.partition('@')[2]}")


@palermo.job(queue="images", name="shop.images.Resize")
def resize(path: str, width: int = 640) -> None:
    time.sleep(random.uniform(0.2, 1.5))
    if path.endswith("7.png"):
        open(path).close()


@palermo.job(queue="payments", name="shop.payments.Charge", retries=5, retry_on=BankBusy)
def charge(order: dict[str, object], *, card_token: str) -> None:
    time.sleep(random.uniform(0.05, 0.4))
    if int(str(order["id"])) % 19 == 0:
        raise CardDeclined(f"order {order['id']}: insufficient funds")
    if int(str(order["id"])) % 17 == 0:
        raise BankBusy(f"order {order['id']}: 503 Service Unavailable from bank.example")
    if int(str(order["id"])) % 23 == 0:
        read("{'status': 'ok'}")


def read(answer: str) -> object:
    return json.loads(answer)


@palermo.job(queue="reports", name="shop.reports.Nightly")
def nightly(day: str) -> None:
    time.sleep(600)
