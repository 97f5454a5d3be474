"""Reading what was told to a scraper."""

from prometheus_client.parser import text_string_to_metric_families


class Scraped:
    """One answer, in Prometheus's text format."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the sample with exactly these labels; None if it is not told."""
        return self.samples.get((name, frozenset(labels.items())))
