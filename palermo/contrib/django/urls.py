"""The web pages as URLs of a Django project: `path("ops/jobs/", include("palermo.contrib.django.urls"))`."""

from django.urls import re_path

from palermo.contrib.django.views import pages

app_name = "palermo"
urlpatterns = [re_path(r"^(?P<path>.*)$", pages, name="pages")]
