"""The shop's pages."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.jobs import outbox, send_receipt, ship
from orders.models import Order
from palermo.contrib.django import enqueue_on_commit


class CardRefused(Exception):
    """The bank says no."""


@csrf_exempt  # the example is called by curl
@require_POST
def create_order(request: HttpRequest) -> HttpResponse:
    """Store an order, have its receipt sent and the order shipped; if the card is refused, do nothing."""
    try:
        with transaction.atomic():
            order = Order.objects.create(email=request.POST["email"], total=int(request.POST["total"]))
            enqueue_on_commit(send_receipt, order.pk)
            outbox.enqueue(ship, order.pk)
            charge(request.POST["card"])
    except CardRefused as error:
        return JsonResponse({"error": str(error)}, status=402)
    return JsonResponse({"order": order.pk}, status=201)


def charge(card: str) -> None:
    """Take the money. Raises CardRefused."""
    if card == "expired":
        raise CardRefused("the card has expired")
