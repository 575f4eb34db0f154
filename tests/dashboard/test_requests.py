"""Which requests are refused: by where they come from, by whose form it is, by scope, and by what was not shown."""

import contextlib
import hashlib
import html
import json
import shlex
import socket
import time

import pytest

from jobq.pausing import Pause, pausable
from jobq.servable import served
from jobq.server import tokens
from jobq.task import Task
from tests.dashboard.support import Dashboard

pytestmark = pytest.mark.check

_PAGES = {
    "/": "watch",
    "/q/demo": "watch",
    "/about": "watch",
    "/q/demo/tasks": "view",
    "/q/demo/running": "view",
    "/q/demo/dead": "view",
    "/q/demo/batches": "view",
    "/q/demo/leases": "view",
    "/q/demo/t/no-such": "view",
    "/q/demo/t/no-such/output": "view",
}


@pytest.fixture(scope="module")
def cookie(dashboard: Dashboard) -> str:
    return dashboard.cookie("admin", "view")


def _do(dashboard: Dashboard, cookie: str, **more: str | None) -> int:
    form = dashboard.ask("GET", "/ui/q/demo", cookie=cookie).form_token
    fields = {"form": form, "action": "pause"}
    return dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields=fields, **more).status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::1"},
    ],
)
def test_a_change_that_none_of_our_pages_asks_for_is_refused(
    dashboard: Dashboard, cookie: str, headers: dict[str, str | None]
) -> None:
    assert _do(dashboard, cookie, **headers) == 403
    assert _do(dashboard, cookie) == 200, "and ours is answered"


def test_a_look_is_refused_to_what_another_site_loads(dashboard: Dashboard, cookie: str) -> None:
    """A link may lead here; scripts, frames and pictures of others may not look."""
    for destination, status in (("document", 200), ("iframe", 403), ("image", 403), ("empty", 403), (None, 403)):
        answer = dashboard.ask("GET", "/ui/", cookie=cookie, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest=destination)
        assert answer.status == status, destination
    assert dashboard.ask("GET", "/ui/", cookie=cookie, Host="evil.example").status == 403


def test_each_answer_lets_a_browser_do_nothing_else(dashboard: Dashboard, cookie: str) -> None:
    paths = ("/ui/", "/ui/q/none", "/ui/no/such", "/ui/enter")
    for answer in (*(dashboard.ask("GET", path, cookie=cookie) for path in paths), dashboard.ask("GET", "/ui/enter")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


def test_a_form_of_another_session_is_refused(dashboard: Dashboard, cookie: str) -> None:
    other = dashboard.sign_in(dashboard.token("admin", "view"))
    form = dashboard.ask("GET", "/ui/q/demo", cookie=other).form_token
    for given in (form, "", "0" * 64):
        fields = {"form": given, "action": "pause"}
        assert dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields=fields).status == 403
    assert dashboard.ask("POST", "/ui/leave", cookie=cookie, fields={"form": form}).status == 403


def test_what_was_not_shown_is_not_done(dashboard: Dashboard, cookie: str) -> None:
    """A confirmation of others, for other tasks or another action, changes nothing; the right one does."""
    ids = dashboard.inside(lambda backend: backend.push([Task.new(command="true"), Task.new(command="true")]))
    form = dashboard.ask("GET", "/ui/q/demo", cookie=cookie).form_token
    asked = dashboard.ask(
        "POST", "/ui/q/demo/act", cookie=cookie, fields={"form": form, "action": "cancel", "id": ids[0]}
    )
    proof = asked.hidden("proof")
    right = [("form", form), ("action", "cancel"), ("proof", proof), ("id", ids[0])]
    wrong = (
        [*right, ("id", ids[1])],
        [*right[:3], ("id", ids[1])],
        [("form", form), ("action", "retry"), *right[2:]],
        [("form", form), ("action", "cancel"), ("proof", "0" * 64), ("id", ids[0])],
    )
    for fields in wrong:
        assert dashboard.ask("POST", "/ui/q/demo/do", cookie=cookie, fields=fields).status == 403
    assert _states(dashboard, ids) == ["ready", "ready"]
    answer = dashboard.ask("POST", "/ui/q/demo/do", cookie=cookie, fields=right)
    assert (answer.status, _states(dashboard, ids)) == (303, ["canceled", "ready"])
    assert "1 canceled" in dashboard.ask("GET", answer.headers["location"], cookie=cookie).text
    log = [json.loads(line) for line in dashboard.server.logged().splitlines() if '"ui cancel"' in line]
    assert [(line["state"], line["count"], line["ids"]) for line in log] == [
        ("began", 1, [ids[0]]),
        ("done", 1, [ids[0]]),
    ]


def _states(dashboard: Dashboard, ids: list[str]) -> list[str]:
    async def find(backend: object) -> list[str]:
        found = {each.id: str(each.state) for each in await backend.journal.find(ids)}  # type: ignore[attr-defined]
        return [found[each] for each in ids]

    return dashboard.inside(find)


@pytest.mark.parametrize("path", _PAGES)
def test_each_page_wants_its_scope(dashboard: Dashboard, path: str) -> None:
    allowed = {"watch": ("watch", "view", "read"), "view": ("view", "read")}[_PAGES[path]]
    for scope in ("watch", "view", "read", "enqueue", "lease", "operate"):
        cookie = dashboard.cookie(scope)
        status = dashboard.ask("GET", f"/ui{path}", cookie=cookie).status
        if path in ("/", "/about"):
            assert status == 200, "it shows what is permitted, and else nothing"
        else:
            assert (status == 403) == (scope not in allowed), (scope, status)


def test_who_may_look_at_one_queue_sees_that_one_alone(dashboard: Dashboard, queue: str) -> None:
    cookie = dashboard.sign_in(dashboard.token("view", queues=(queue,)))
    deadline = time.monotonic() + 10
    while f">{queue}<" not in (text := dashboard.ask("GET", "/ui/", cookie=cookie).text):
        assert time.monotonic() < deadline, "what is shown is two seconds old at most"
        time.sleep(0.1)
    assert "demo" not in text.replace(dashboard.spec, "")
    assert dashboard.ask("GET", "/ui/q/demo", cookie=cookie).status == 403
    assert dashboard.ask("GET", f"/ui/q/{queue}/tasks", cookie=cookie).status == 200


def test_who_may_only_watch_reads_no_words_of_a_pause(dashboard: Dashboard, queue: str) -> None:
    spec = dashboard.spec.replace("/demo", f"/{queue}")
    mark = Pause(at=time.time(), by="ada@node-7", reason="secret words")
    dashboard.inside(lambda backend: pausable(backend).pause(mark), spec)
    for scope in ("watch", "view"):
        text = dashboard.ask("GET", f"/ui/q/{queue}", cookie=dashboard.cookie(scope)).text
        assert "Paused" in text
        assert ("secret words" in text, "ada@node-7" in text) == (scope == "view", scope == "view")


@pytest.mark.parametrize(
    ("action", "scope"),
    [
        ("cancel", "operate"),
        ("hasten", "operate"),
        ("retry", "operate"),
        ("pause", "operate"),
        ("purge", "admin"),
    ],
)
def test_each_action_wants_its_scope(dashboard: Dashboard, action: str, scope: str) -> None:
    for given in ("view", "operate", "admin"):
        cookie = dashboard.cookie("view", given)
        form = dashboard.ask("GET", "/ui/q/demo", cookie=cookie).form_token
        fields = {"form": form, "action": action, "id": "some-task"}
        status = dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields=fields).status
        permitted = {"operate": ("operate", "admin"), "admin": ("admin",)}[scope]
        assert status == (200 if given in permitted else 403), given


def test_a_look_changes_nothing(dashboard: Dashboard, cookie: str) -> None:
    for path in ("/ui/q/demo/act", "/ui/q/demo/do", "/ui/leave"):
        assert dashboard.ask("GET", path, cookie=cookie).status == 405


def test_a_session_ends_with_its_token(dashboard: Dashboard) -> None:
    token = dashboard.token("view")
    cookie = dashboard.sign_in(token)
    assert dashboard.ask("GET", "/ui/", cookie=cookie).status == 200
    token_id = token.split("_")[1]
    dashboard.inside(lambda backend: tokens.revoke(served(backend), token_id))
    deadline = time.monotonic() + 10
    while dashboard.ask("GET", "/ui/", cookie=cookie).status == 200:
        assert time.monotonic() < deadline, "a revoked token is good for two seconds at most"
        time.sleep(0.2)
    assert dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields={"form": "x"}).status == 401


def test_a_cookie_that_somebody_made_is_none(dashboard: Dashboard, cookie: str) -> None:
    name, _, value = cookie.partition("=")
    written, _, mac = value.partition(".")
    for made in ("", ".", "x", f"{written}.", f".{mac}", f"{written}x.{mac}", f"{written}.{mac[:-1]}0x", "é.é"):
        answer = dashboard.ask("GET", "/ui/", cookie=f"{name}={made}")
        assert answer.status == 303, made
        assert answer.headers["location"].startswith("/ui/enter")


def test_after_signing_in_one_is_where_one_wanted_to_be_and_nowhere_else(dashboard: Dashboard) -> None:
    token = dashboard.token("view")
    dashboard.sign_in(token)
    wanted = "/ui/q/demo/tasks?state=dead"
    answer = dashboard.ask("GET", wanted)
    assert (answer.status, answer.headers["location"]) == (
        303,
        "/ui/enter?next=%2Fui%2Fq%2Fdemo%2Ftasks%3Fstate%3Ddead",
    )
    for given, leads in (
        (wanted, wanted),
        ("https://evil.example/ui/", "/ui/"),
        ("//evil.example/ui/", "/ui/"),
        ("/\\evil.example", "/ui/"),
        ("/ui/../../x", "/ui/"),
        ("/ui/%2e%2e/x", "/ui/"),
        ("/ui/q/a..b/tasks", "/ui/q/a..b/tasks"),
        ("http://[", "/ui/"),
        ("/api/tasks", "/ui/"),
        ("javascript:alert(1)", "/ui/"),
        ("", "/ui/"),
    ):
        answer = dashboard.ask("POST", "/ui/enter", fields={"token": token, "next": given})
        assert answer.headers["location"] == leads, given


def test_wrong_tokens_are_refused_and_slowed_down(dashboard: Dashboard) -> None:
    statuses = [dashboard.ask("POST", "/ui/enter", fields={"token": "jobq_x_y"}).status for _ in range(40)]
    assert statuses[0] == 401
    assert set(statuses) == {401, 429}
    assert dashboard.ask("POST", "/ui/enter", fields={"once": "guessed"}).status in (401, 429)


def test_what_stands_at_said_is_ours_alone(dashboard: Dashboard, cookie: str) -> None:
    """Nobody lets this page say something by a link to it."""
    text = dashboard.ask("GET", "/ui/q/demo?said=call+0800+123&proof=00", cookie=cookie).text
    assert "call 0800" not in text.replace("said=call", "")


def test_too_much_is_refused(dashboard: Dashboard, cookie: str) -> None:
    form = dashboard.ask("GET", "/ui/q/demo", cookie=cookie).form_token
    many = [("form", form), ("action", "cancel"), *(("id", f"t{n}") for n in range(501))]
    answer = dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields=many)
    assert (answer.status, "at most 500" in answer.text) == (400, True)
    assert dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields={"form": "x" * 300_000}).status == 413


def test_what_was_shipped_is_served_and_no_other_file(dashboard: Dashboard) -> None:
    secret = dashboard.folder / "secret.txt"
    secret.write_text("of nobody else's business")
    page = dashboard.ask("GET", "/ui/enter").text
    link = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
    shipped = dashboard.ask("GET", link)
    assert (shipped.status, shipped.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in shipped.headers["cache-control"]
    hash_ = link.split("/")[3]
    right = hashlib.sha256(secret.read_bytes()).hexdigest()[:16]
    names = (
        str(secret),
        f"/{secret}",
        str(secret).replace("/", "%2f"),
        "../app.py",
        "%2e%2e/app.py",
        "a%00b",
        "",
        "%ff",
    )
    for name in names:
        for each in (hash_, right, "x"):
            answer = dashboard.ask("GET", f"/ui/static/{each}/{name}")
            assert (answer.status, "business" in answer.text) == (404, False), name
    assert dashboard.ask("GET", link, Host="evil.example").status == 403
    assert dashboard.ask("GET", "/ui/q/demo/", Host="evil.example").status == 403, "before it is led anywhere"
    assert dashboard.ask("GET", "/ui/no/such", Host="evil.example").status == 403


def _beginning(dashboard: Dashboard) -> socket.socket:
    """Begin to sign in, and send no more."""
    connection = socket.create_connection(("127.0.0.1", dashboard.server.port), 30)
    own = f"127.0.0.1:{dashboard.server.port}"
    head = f"POST /ui/enter HTTP/1.1\r\nHost: {own}\r\nOrigin: http://{own}\r\nContent-Length: 90\r\n\r\ntoken="
    connection.sendall(head.encode())
    return connection


@pytest.mark.slow("a browser beside a service and workers")
def test_who_begins_to_sign_in_and_sends_no_more_keeps_nobody_out(dashboard: Dashboard) -> None:
    """Each has ten seconds; of more than a hundred the oldest gives way at once."""
    token = dashboard.token("view")
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(_beginning(dashboard)) for _ in range(150)]
        assert begun[0].recv(20).startswith(b"HTTP/1.1 408")
        assert dashboard.sign_in(token)
        began = time.monotonic()
        assert begun[-1].recv(20).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 15
    assert dashboard.ask("POST", "/ui/enter", fields={"token": "x" * 5_000}).status == 413


def test_a_command_on_a_page_takes_what_the_page_shows(dashboard: Dashboard, cookie: str) -> None:
    task_id = dashboard.inside(lambda backend: backend.push([Task.new(command="true")]))[0]
    paths = ("running", "tasks", "tasks?state=dead", "dead", "batches", "leases", f"t/{task_id}")
    for path in paths:
        text = dashboard.ask("GET", f"/ui/q/demo/{path}", cookie=cookie).text
        command = html.unescape(text.partition("The same in a terminal: <code>")[2].partition("</code>")[0])
        words = shlex.split(command)
        assert words[:2] == ["jobq", dashboard.spec], path
        dashboard.jobq(*words[2:])
    for path in ("tasks?state=dead&exit=3", "tasks?age=1h", "tasks?state=ready"):
        assert "in a terminal" not in dashboard.ask("GET", f"/ui/q/demo/{path}", cookie=cookie).text


def test_an_error_leads_back_to_where_it_was_asked_for(dashboard: Dashboard, cookie: str) -> None:
    form = dashboard.ask("GET", "/ui/q/demo", cookie=cookie).form_token
    fields = {"form": form, "action": "cancel", "back": "/ui/q/demo/tasks?state=ready"}
    answer = dashboard.ask("POST", "/ui/q/demo/act", cookie=cookie, fields=fields)
    assert answer.status == 400
    assert '<a href="/ui/q/demo/tasks?state=ready">Back</a>' in answer.text


def test_without_ui_there_is_none(dashboard: Dashboard) -> None:
    from tests.service.server import running  # noqa: PLC0415 - this test's alone

    with running(dashboard.spec, dashboard.folder, is_open=False) as server:
        other = Dashboard(server, dashboard.spec, dashboard.folder)
        assert other.ask("GET", "/ui/").status == 404
