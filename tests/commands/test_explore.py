"""Tests of `tfm explore`: its server, its answers, and who may ask it."""

import contextlib
import copy
import dataclasses
import http.client
import io
import json
import re
import socket
import threading
import types
import urllib.parse

import numpy as np
import pytest

from tests.support.random_runs import write_random_run
from tests.support.tiny import randomize_weights
from tests.support.tiny_lm import make_lm_config, write_documents
from tfm.commands import explore
from tfm.commands.options import Explore
from tfm.commands.page_server import MAX_BODY_BYTES, PageServer
from tfm.errors import UserError
from tfm.tasks.translation.pipeline import TextTranslation
from tfm.visualize.live import Example, LiveExamples
from tfm.workdir import runs

JSON = {"Content-Type": "application/json"}
CROSS = "decoder.layers_0.cross_attention.head_outputs"


def answer(request):
    """Answers with the request, or fails as the request asks."""
    if request.get("fail") == "user":
        raise UserError("Expected a sentence, got none.")
    if request.get("fail") == "bug":
        raise ZeroDivisionError("a bug")
    return {"asked": request}


@contextlib.contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server():
    with serving(PageServer(0, lambda path: f"<p>{path}</p>", answer)) as server:
        yield server


def ask(server, path, body=None, headers=(), method=""):
    """Returns (status, headers, text) of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method or ("GET" if body is None else "POST"), path, body, dict(headers))
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


def post(server, content, **headers):
    body = content if isinstance(content, str | bytes) else json.dumps(content)
    return ask(server, server.request_path, body, JSON | headers)


def test_address_of_the_page_sends_the_page(server):
    url = urllib.parse.urlsplit(server.url)
    assert (url.scheme, url.hostname, url.port) == ("http", "127.0.0.1", server.server_port)
    status, headers, text = ask(server, url.path)
    assert (status, text) == (200, f"<p>{server.request_path}</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"


def test_a_request_has_an_answer(server):
    status, headers, text = post(server, {"text": "ü"})
    assert (status, json.loads(text)) == (200, {"asked": {"text": "ü"}})
    assert headers["Content-Type"] == "application/json"


def test_a_mistake_of_the_user_is_the_answer(server):
    status, _, text = post(server, {"fail": "user"})
    assert (status, json.loads(text)) == (200, {"error": "Expected a sentence, got none."})


def test_a_bug_is_logged_and_the_server_goes_on(server, caplog):
    status, _, text = post(server, {"fail": "bug"})
    assert status == 500
    assert "bug" in json.loads(text)["error"]
    assert "ZeroDivisionError" in caplog.text
    assert post(server, {})[0] == 200


@pytest.mark.parametrize("path", ["/", "/look", "/wrong/", "/..%2f", "/../../etc/passwd"])
def test_no_answer_without_the_token(path, server):
    for body in (None, "{}"):
        status, _, text = ask(server, path, body, JSON)
        assert status == 404
        assert server.page_path not in text


@pytest.mark.parametrize("end", ["x", "?a=1", "../../etc/passwd", "config.json"])
def test_nothing_else_lies_below_the_token(end, server):
    assert ask(server, server.page_path + end)[0] == 404


def test_each_server_has_another_token_of_128_bits_or_more(server):
    with serving(PageServer(0, str, answer)) as other:
        tokens = [path.strip("/") for path in (server.page_path, other.page_path)]
    assert min(6 * len(token) for token in tokens) >= 128  # a character of base64 has 6 bits
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_other_web_sites_have_no_answer(headers, server):
    assert ask(server, server.page_path, headers=headers)[0] == 403
    assert post(server, {}, **headers)[0] == 403


def test_localhost_is_the_same_machine(server):
    host = f"localhost:{server.server_port}"
    assert post(server, {}, Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "1", "NaN", "[" * 100_000, b"\xff", '{"a":' * 30_000],
    ids=lambda body: str(body)[:9],
)
def test_a_body_that_is_no_object_is_refused(body, server):
    assert post(server, body)[0] == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": str(MAX_BODY_BYTES + 1)}, 413),
        ({"Content-Length": "-1"}, 411),
        ({"Content-Length": "1e3"}, 411),
        ({"Content-Length": "9" * 5000}, 411),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_body_of_another_kind_is_refused(headers, status, server):
    assert post(server, "{}", **headers)[0] == status


def test_other_methods_are_refused(server):
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert ask(server, server.page_path, method=method)[0] == 501


@pytest.mark.long
def test_broken_requests_and_closed_connections_print_nothing(server, capfd, caplog):
    for text in (
        b"",
        b"\x00\xff\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 70_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
            connection.sendall(text)
    for lines in (f"GET {server.page_path}", f"POST {server.request_path}"):
        head = f"{lines} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Length: 99\r\n"
        with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
            reset = b"\1\0\0\0\0\0\0\0"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    assert post(server, {})[0] == 200
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_port_that_is_used_is_named(server):
    with pytest.raises(UserError, match=rf"--port={server.server_port} cannot be used.*Choose another port"):
        PageServer(server.server_port, str, answer)


def test_only_this_machine_is_listened_to(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"


def make_options(workdir, **fields):
    fields = {"overrides": {}} | fields
    return Explore(workdir=str(workdir), config=None, arguments=("red dog",), **fields)


@pytest.mark.long
def test_error_for_a_task_that_cannot_observe(regression_run):
    with pytest.raises(UserError, match="tfm explore needs a task that can observe its model"):
        explore.open_server(runs.load(str(regression_run)), make_options(regression_run))


@pytest.fixture(scope="module")
def run(tiny_run):
    return randomize_weights(runs.load(str(tiny_run)))


@pytest.fixture(scope="module")
def explored(run, tiny_run):
    with serving(explore.open_server(run, make_options(tiny_run, max_tokens=32))) as server:
        yield server


def read_page(server):
    """Returns the data of the page."""
    text = ask(server, server.page_path)[2]
    assert "connect-src 'self'" in text
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def look(server, text, off=(), known=None):
    """Returns the answer to a request."""
    known = [example["id"] for example in read_page(server)["live"]["examples"]] if known is None else known
    return json.loads(post(server, {"text": text, "off": list(off), "known": known})[2])


@pytest.mark.long
def test_an_own_example_is_compared_with_the_examples_of_the_page(explored, run):
    (example,) = read_page(explored)["live"]["examples"]
    found = look(explored, "blue cat", known=[example["id"]])
    assert found["example"]["title"] == "blue cat"
    assert found["example"]["result"] == run.task.translate(run.params, ["blue cat"])[0]
    assert "source labels" in found["alignments"][str(example["id"])]
    assert found["example"]["live"]["text"] == "blue cat"


@pytest.mark.long
def test_a_head_that_is_off_has_the_result_of_the_python_that_is_shown(explored, run, tiny_run, monkeypatch):
    found = look(explored, "red dog", [[CROSS, 1]])["example"]
    assert found["title"] == "red dog Without cross layer 0, head 1."
    monkeypatch.setattr(runs, "load", lambda workdir: run if workdir == str(tiny_run) else None)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(found["live"]["python"], {})
    assert output.getvalue() == f"{[found['result']]}\n"


@pytest.mark.long
def test_page_searches_with_a_coverage_penalty_if_the_run_draws_samples(run):
    """Parts have no switches then, because the search reads the attention."""
    task = copy.copy(run.task)
    decoding = dataclasses.replace(task.config.decoding, samples=3, beam_size=2, coverage_penalty=0.2)
    task.config = dataclasses.replace(task.config, decoding=decoding)
    examples = LiveExamples(task, run.variables, make_python=lambda *_: "", max_tokens=32)
    assert '"hasParts":false' in examples.make_page([Example("red dog")], "title", "/page")


@pytest.mark.long
def test_changes_are_those_of_the_tokens_of_the_original(explored, run):
    changes = look(explored, "red dog", [[CROSS, 1]])["example"]["live"]["changes"]
    original = run.task.observe(run.variables, "red dog", 32)
    assert [label for label, *_ in changes] == original.tracks["predicted"].labels
    before = [each.probability for each in original.predictions]
    assert [probability for _, probability, _ in changes] == pytest.approx(before, abs=1e-6)
    assert any(abs(after - before) > 1e-6 for _, before, after in changes)


def test_python_names_the_checkpoint_and_the_search_of_the_run():
    overrides = {"decoding.beam_size": 2, "decoding.samples": 4, "validation_sentences": 3}
    options = make_options("runs/a", checkpoint="last", average=2, overrides=overrides)
    decoding = types.SimpleNamespace(samples=4)
    task = TextTranslation()
    task.config = types.SimpleNamespace(decoding=decoding)
    lines = explore.write_python(options, types.SimpleNamespace(task=task), "It's.", "{}").splitlines()
    assert lines[3:] == [
        "translator = tfm.Translator.load('runs/a', checkpoint='last', average=2)",
        "edited = translator.with_edits({})",
        'print(edited.translate(["It\'s."], beam_size=2, samples=0))',
    ]


@pytest.mark.long
def test_python_of_another_task_runs(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_documents(corpus)
    workdir = write_random_run(make_lm_config(corpus), tmp_path / "run", (np.ones((1, 2), int),), {1: 0.0})
    run = runs.load(str(workdir))
    with serving(explore.open_server(run, make_options(workdir, max_tokens=16))) as server:
        [layer, *_] = read_page(server)["live"]["heads"]["decoder"]
        found = look(server, "red dog", [[layer, 1]], known=[])["example"]
    namespace = {}
    exec(found["live"]["python"].replace("print(", "result = ("), namespace)
    after = [probability for *_, probability in found["live"]["changes"]]
    expected = [prediction.probability for prediction in namespace["result"]]
    assert after == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
def test_unknown_characters_are_named(explored):
    assert look(explored, "red \u2603 dog")["notes"] == [
        "The vocabulary lacks '\u2603' (U+2603). Training has not seen it."
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"text": " ", "off": [], "known": []}, "Expected a sentence"),
        ({"text": "red " * 99, "off": [], "known": []}, "at most 32 tokens"),
        ({"text": 1, "off": [], "known": []}, "text, off and known"),
        ({}, "text, off and known"),
        ({"text": "red", "off": [["no.such", 1]], "known": []}, "Expected a head, a sublayer or a token"),
        ({"text": "red", "off": [[CROSS, 99]], "known": []}, "Expected a head"),
        ({"text": "red", "off": [{}], "known": []}, "Expected \\[point, index\\]"),
        ({"text": "red", "off": [], "known": [10**9]}, "has forgotten an example"),
        ({"text": "red", "off": [], "known": [True]}, "has forgotten an example"),
        ({"text": "red", "off": [[CROSS, 1]] * 2000, "known": []}, "at most 1,000 parts"),
    ],
)
def test_mistakes_are_answered_with_a_message(request_, message, explored):
    status, _, text = post(explored, request_)
    assert status == 200
    assert re.search(message, json.loads(text)["error"])


@pytest.mark.long
def test_ctrl_c_stops_the_server(run, tiny_run, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(Explore, "load", lambda self: run)
    monkeypatch.setattr("webbrowser.open", opened.append)

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupt)
    explore.main([f"--workdir={tiny_run}", "--no-browser", "red dog"])
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("http://127.0.0.1:")
    assert output[1:] == ["Ctrl-C stops the server.", "Stopped."]
    assert not opened
