"""Connections after the door: how answers are sent."""

from __future__ import annotations

import h11

from tapfinger.live.http.connections import JoinedAnswers


def served() -> JoinedAnswers:
    """A connection that has read a request."""
    made = JoinedAnswers(h11.SERVER)
    made.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    while made.next_event() is not h11.PAUSED and made.their_state is not h11.DONE:
        pass
    return made


def test_an_answer_that_is_there_is_sent_in_one_go() -> None:
    connection = served()
    assert connection.send(h11.Response(status_code=200, headers=[("Content-Length", "2")])) == b""
    sent = connection.send(h11.Data(data=b"ok"))
    assert sent.startswith(b"HTTP/1.1 200")
    assert sent.endswith(b"\r\n\r\nok")
    assert connection.send(h11.EndOfMessage()) == b""


def test_an_empty_answer_is_sent() -> None:
    connection = served()
    connection.send(h11.Response(status_code=204, headers=[("Content-Length", "0")]))
    sent = [connection.send(h11.Data(data=b"")), connection.send(h11.EndOfMessage())]
    assert b"".join(sent).startswith(b"HTTP/1.1 204")


def test_the_head_of_a_stream_does_not_wait_for_what_comes_later() -> None:
    connection = served()
    assert connection.send(h11.Response(status_code=200, headers=[])).startswith(b"HTTP/1.1 200")
