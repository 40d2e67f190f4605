"""A notifier that the triggerer can import, as it does those that ``watch_source`` names."""

from typing import Any

from airflow.sdk import BaseNotifier


class Heard(BaseNotifier):
    """Writes what it is told into a file, a line each."""

    template_fields = ("text",)

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.text = "{{ backpressure_event.kind }} {{ backpressure_event.target }}: {{ backpressure_event.sentence }}"

    async def async_notify(self, context: Any) -> None:
        """See ``BaseNotifier.async_notify``."""
        with open(self.file, "a") as file:
            print(self.text, file=file)
