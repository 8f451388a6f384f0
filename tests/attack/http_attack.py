"""Raw HTTP that is endless, ambiguous or slow, and signals while the server is busy.

usage: http_attack.py PROGRAM MODEL_DIRECTORY
"""

import http.client
import io
import os
import resource
import signal
import subprocess
import time

import mutants
import victim
from victim import program


def read_all(connection):
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data


CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
          b"Transfer-Encoding: chunked\r\n\r\n"


class Framing(victim.Attack):
    FLAGS = ("--max-body", "1MiB", "--max-header", "16KiB", "--idle-timeout", "20")

    def exchange(self, data):
        with self.victim.connect() as connection:
            connection.sendall(data)
            connection.settimeout(program.PATIENCE)
            return read_all(connection)

    def endless(self, head, piece, most=580 << 20):
        """Sends pieces until the server stops reading; returns the number of bytes it read. The server keeps reading
        for a while after refusing a request, so that the client can receive the refusal."""
        with self.victim.connect() as connection:
            connection.sendall(head)
            sent = 0
            try:
                while sent < most:
                    connection.sendall(piece)
                    sent += len(piece)
            except OSError:
                pass
        return sent

    def refuse_framing(self, data):
        """Sends the beginning of a request whose framing is larger than all that a request may have."""
        answer = self.exchange(data)
        self.assertTrue(answer.startswith(b"HTTP/1.1 413"), answer[:300])
        self.assertIn(b"chunk extensions or trailers", answer)

    def test_what_is_endless(self):
        for piece in (b"1;" + b"e" * 8000 + b"\r\nx\r\n",  # extensions of chunks
                      b"1" + b";e=f" * 200 + b"\r\nx\r\n"):
            self.refuse_framing(CHUNKED + piece * ((4 << 20) // len(piece)))
            before = self.victim.resident()
            self.assertLess(self.endless(CHUNKED, piece), 80 << 20)
            self.assertLess(self.victim.resident() - before, victim.MEMORY_FACTOR * (32 << 20))
        for head in (CHUNKED + b"1;", CHUNKED + b"0\r\nX: ", CHUNKED + b"0\r\n"):  # one line; trailers
            piece = b"a: b\r\n" * 1000 if head.endswith(b"0\r\n") else b"x" * 8000
            self.refuse_framing(head + piece * 30)  # less than a body may have
            before = self.victim.cpu()
            self.assertLess(self.endless(head, piece), 80 << 20)
            self.assertLess(self.victim.cpu() - before, victim.CPU_SECONDS)

    def test_extensions_are_taken(self):
        answer = self.exchange(CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") +
                               b'5;a=b\r\n{"pro\r\nc\r\nmpt": "abc"}\r\n0\r\nT: v\r\n\r\n')
        self.assertTrue(answer.startswith(b"HTTP/1.1 200"), answer[:300])

    def test_what_is_ambiguous(self):
        body = b'{"prompt": "x"}'
        length = b"Content-Length: %d" % len(body)
        chunked = b"f\r\n" + body + b"\r\n0\r\n\r\n"
        host = b"Host: localhost"
        for headers, data in (
                ((host, b"Transfer-Encoding: xchunked"), chunked),
                ((host, b"Transfer-Encoding: chunked, x"), chunked),
                ((host, b"Transfer-Encoding: x, chunked"), chunked),
                ((host, b"Transfer-Encoding: gzip, chunked"), chunked),
                ((host, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), chunked),
                ((host, b"Transfer-Encoding: identity", length), body),
                ((host, b"Transfer-Encoding: chunked", length), chunked),
                ((host, length, b"Transfer-Encoding: chunked"), chunked),
                ((host, length, length), body),
                ((host, length, b"Content-Length: 5"), body),
                ((host, b"Content-Length: 1, 15"), body),
                ((host, b"Content-Length: +15"), body),
                ((host, b"Content-Length : 15"), body),
                ((host, b"Host: example.org", length), body),
                ((host, host, length), body)):
            head = b"\r\n".join((b"POST /tokenize HTTP/1.1", *headers,
                                 b"Content-Type: application/json"))
            smuggled = b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
            answer = self.exchange(head + b"\r\n\r\n" + data + smuggled)
            self.assertTrue(answer.startswith(b"HTTP/1.1 400"), (headers, answer[:200]))
            self.assertIn(b"Connection: close", answer)
            self.assertEqual(answer.count(b"HTTP/1.1"), 1, headers)

    def answer(self, data):
        """The status of the first answer to bytes that come to an end."""
        with self.victim.connect() as connection:
            try:
                connection.sendall(data)
                connection.shutdown(1)
            except OSError:
                pass
            answer = read_all(connection)
        if not answer:
            return "closed"
        response = http.client.HTTPResponse(FakeSocket(answer))
        response.begin()
        return response.status

    def test_random_heads(self):
        """Pieces of heads in random order: each is answered or closed, and none stops the server."""
        pieces = [b"GET ", b"POST ", b"/tokenize", b"/%2e%2e/%00", b" HTTP/1.1\r\n", b" HTTP/9.9\r\n",
                  b"\r\n", b"\n", b"\r\n\r\n", b"Host: localhost\r\n", b"Host: \r\n", b"\x00", b"\xff" * 9,
                  b"Content-Length: 3\r\n", b"Content-Length: 99999999999999999999\r\n",
                  b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"fffffffffffffffff\r\n",
                  b"Connection: close\r\n", b" folded: x\r\n", b": \r\n", b"{}", b"0\r\n\r\n", b"A" * 9000]
        valid = [CHUNKED + b'5;a=b\r\n{"pro\r\nc\r\nmpt": "abc"}\r\n0\r\nT: v\r\n\r\n',
                 victim.request_bytes("/tokenize", b'{"prompt": "x"}', "Connection: keep-alive") * 2,
                 b"GET /stats?a=%20b HTTP/1.0\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
                 b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n"]

        def attempt(chance):
            if chance.random() < 0.3:
                return self.answer(b"".join(chance.choice(pieces) for _ in range(chance.randrange(1, 12))))
            return self.answer(mutants.damaged(chance, chance.choice(valid), pieces))

        self.campaign("raw HTTP", 140, attempt)


class FakeSocket:
    def __init__(self, data):
        self.data = data

    def makefile(self, *_):
        return io.BytesIO(self.data)


class Signals(victim.unittest.TestCase):
    """A signal ends the server even while its workers are busy."""

    connections = ()

    def start(self, *flags):
        server = victim.Victim(*flags)
        self.addCleanup(self.kill, server)
        # Several seconds of tokenizing on both workers; the first bytes show that it has started.
        body = victim.request_bytes("/tokenize", b'{"prompt": "' + b"ab cd\\u1234 " * 2_500_000 + b'"}')
        self.tearDown()
        self.connections = [server.connect() for _ in range(4)]
        for connection in self.connections:
            connection.sendall(body)
        before = server.cpu()
        self.assertTrue(victim.wait_for(lambda: server.cpu() - before > 0.3))
        return server

    def tearDown(self):
        for connection in self.connections:
            connection.close()

    def kill(self, server):
        """What a failed test has left running."""
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)

    def test_one_signal_ends_it_in_time(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.start("--shutdown-timeout", "0.5")
            begun = time.time()
            self.assertEqual(server.stop(number), 3)
            self.assertLess(time.time() - begun, 5 + victim.CPU_SECONDS)

    def test_a_second_signal_ends_it_at_once(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)):
            server = self.start("--shutdown-timeout", "60")
            server.process.send_signal(first)
            time.sleep(0.3)
            begun = time.time()
            self.assertEqual(server.stop(second), 128 + second)
            self.assertLess(time.time() - begun, victim.CPU_SECONDS)

    def test_work_ends_with_its_client(self):
        server = self.start()
        for connection in self.connections:
            connection.close()
        before, used, last = server.cpu(), 0, -1
        most = victim.CPU_SECONDS / 2
        while last < used < most:  # until it rests
            time.sleep(0.5)
            last, used = used, server.cpu() - before
        self.assertLess(used, most, "it computes for clients that have left")
        self.assertEqual(server.stop(), 0)


class Program(victim.unittest.TestCase):
    def test_an_empty_key_is_no_key(self):
        done = subprocess.run([program.PROGRAM, "serve", "--model", program.MODEL, "--port", "0"],
                              env={**os.environ, "LITECACHE_API_KEY": ""}, capture_output=True, text=True,
                              timeout=program.PATIENCE)
        self.assertGreater(done.returncode, 0)
        self.assertNotRegex(done.stderr, program.REPORT)
        self.assertIn("LITECACHE_API_KEY", done.stderr)

    def test_paths_in_the_log_are_one_line(self):
        server = victim.Victim("--log-level", "info")
        with server.connect() as connection:
            connection.sendall(b"GET /%0a%0dfake%1b[2Jline HTTP/1.1\r\nHost: localhost\r\n"
                               b"Connection: close\r\n\r\n")
            self.assertTrue(read_all(connection).startswith(b"HTTP/1.1 404"))
        self.assertEqual(server.stop(), 0)
        log = "".join(server.log)
        self.assertIn("\\x0a\\x0dfake\\x1b[2Jline", log)
        self.assertNotIn("\x1b", log)

    def test_a_small_stack(self):
        """The deepest allowed nesting is also processed with a stack smaller than usual: macros may take 4 MiB."""
        limit = 256 << 10
        server = victim.Victim("--trust-chat-template", preexec=lambda: resource.setrlimit(
            resource.RLIMIT_STACK, (limit, resource.getrlimit(resource.RLIMIT_STACK)[1])))
        deep = '{"a":' * 126 + "1" + "}" * 126
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": deep}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        self.assertEqual(server.post("/tokenize", {"messages": messages})[0], 200)
        schema = {"type": "integer"}
        for _ in range(100):
            schema = {"items": schema}
        body = {"prompt": "x", "max_tokens": 1, "guided_json": schema}
        self.assertEqual(server.post("/v1/completions", body)[0], 200)
        status, answer = server.post("/tokenize", {
            "messages": messages, "chat_template": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"})
        self.assertEqual((status, "levels deep" in answer["error"]["message"]), (400, True), answer)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    victim.main()
