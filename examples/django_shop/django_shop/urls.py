"""The addresses: the shop, Django's admin, and Palermo's pages for staff."""

from django.contrib import admin
from django.urls import include, path
from orders.views import create_order

urlpatterns = [
    path("orders/", create_order),
    path("admin/", admin.site.urls),
    path("ops/jobs/", include("palermo.contrib.django.urls")),
]
