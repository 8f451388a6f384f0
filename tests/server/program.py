"""The program under test as a server in a separate process: shared by the Python tests of the server."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

PROGRAM, MODEL = sys.argv[1:3]
NAME = "litecache-demo-16m"  # the shipped model, as the server names it
# Seconds that a test waits before it takes a server for hung: many, because a machine may be overloaded. Sanitizer
# builds are several times slower.
PATIENCE = float(os.environ.get("LC_TEST_PATIENCE", "180"))
# How a sanitizer's report begins. Exit codes do not show it: UndefinedBehaviorSanitizer ends the program with 1, like
# an error, and a program that is killed ends with its signal.
REPORT = re.compile(r"(?:Address|Leak|Thread|UndefinedBehavior)Sanitizer|: runtime error: ")
# It continues code; greedy by its generation_config.json.
TURNS = [{"role": "user", "content": "def add(a, b):\n    return"}]


# Messages of the program that contain its address.
LISTENS = r"listening on (http[^,]+),"  # while it loads
SERVES = r"serving .* at (http\S+)"


class Server:
    """`litecache serve` on a separate port, and its output."""

    def __init__(self, *flags, model=MODEL, port="0", key="", preexec=None, before=(),
                 until=SERVES):
        """`model`: None where flags say what to serve. `before`: a command that runs the rest of its line. `until`: the
        message to wait for."""
        command = [*before, PROGRAM, "serve", *([] if model is None else ["--model", str(model)]), "--port", port,
                   "--threads", "1", "--memory", "2GiB", *(["--api-key", key] if key else []), *flags]
        self.key = key
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=preexec)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(until, line)
            if found:
                self.url = found.group(1)
                break
        else:
            self.process.wait()
            self.process.stderr.close()
            raise RuntimeError("the server did not start: " + self.whole_log())
        # Further output must not fill the pipe.
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()

    def stop(self, number=signal.SIGTERM):
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self):
        code = self.process.wait(timeout=PATIENCE)
        self.reader.join()
        self.process.stderr.close()
        self.whole_log()
        return code

    def whole_log(self):
        """All output of a server that has ended, which no sanitizer's report may be part of."""
        log = "".join(self.log)
        assert not REPORT.search(log), log
        return log

    def open(self, path, body=None):
        """The answer, to be read and closed by the caller."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(
            urllib.request.Request(self.url + path, data=data, headers=headers), timeout=PATIENCE)

    def call(self, path, body=None):
        with self.open(path, body) as answer:
            return json.load(answer)

    def samples(self):
        """Samples of /metrics by name, with the labels as written."""
        with self.open("/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def wait_until(self, true, what):
        """Polls /stats until it satisfies a condition, and returns it."""
        deadline = time.time() + PATIENCE
        while True:
            stats = self.call("/stats")
            if true(stats):
                return stats
            if time.time() > deadline:
                raise AssertionError(f"{what}: {stats}")
            time.sleep(0.02)

    def wait_idle(self):
        return self.wait_until(lambda stats: stats["requests"]["running"] == 0,
                               "requests are left running")


class ServerTest(unittest.TestCase):
    """Tests that share a server, which ends without an error."""

    @classmethod
    def serve(cls):
        return Server()

    @classmethod
    def setUpClass(cls):
        cls.server = cls.serve()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.log)
