"""The program as a server with an API key, and the openai package as its client.

Exits with 77 (skipped) if the packages are missing.
"""

import sys

try:
    import openai
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

import program

KEY = "test-key"


class Server(program.Server):
    """With a key, the package's client, and Prometheus's parser."""

    def __init__(self, *flags, **options):
        super().__init__(*flags, key=KEY, **options)

    def client(self, **more):
        options = {"base_url": self.url + "/v1", "api_key": KEY, "max_retries": 0, "timeout": program.PATIENCE}
        return openai.OpenAI(**{**options, **more})

    def metrics(self):
        """Samples of /metrics: (name, labels) -> value."""
        with self.open("/metrics") as answer:
            text = answer.read().decode()
        return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for family in text_string_to_metric_families(text) for sample in family.samples}
