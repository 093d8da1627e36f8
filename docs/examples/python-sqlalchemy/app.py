"""A service that takes application forms. The form and the message that tells others of it are
written in one transaction; decisions come back into its inbox table.

    pip install -r requirements.txt
    DATABASE_URL=postgres://… python app.py
    curl -d '{"number": "A-1", "applicant": "Kim", "region": "11"}' http://127.0.0.1:8090/applications
"""

import json
import os
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from sqlalchemy import create_engine, make_url, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from outbox import enqueue
from tables import Application, Inbox

URL = make_url(os.environ["DATABASE_URL"].replace("postgres://", "postgresql://", 1))
ENGINE = create_engine(URL.set(drivername="postgresql+psycopg"))


def submit(form) -> HTTPStatus:
    """POST /applications: 201 if the form was taken, 200 if it was before."""
    row = {name: form[name] for name in ("number", "applicant", "region")}
    with Session(ENGINE) as session, session.begin():
        # RETURNING says whether there is a new row; a row count does not, through the ORM.
        new = insert(Application).values(**row, version=1).on_conflict_do_nothing()
        if session.scalar(new.returning(Application.number)) is None:
            return HTTPStatus.OK
        enqueue(session, "application.submitted", "application@1.0", row["number"], 1, row)
    return HTTPStatus.CREATED


def amend(number: str, change) -> HTTPStatus:
    """PUT /applications/{number}: the applicant has moved."""
    region = change["region"]
    with Session(ENGINE) as session, session.begin():
        # The row first: whoever changes the same application at the same time waits here, so that
        # its messages are written in the order of its versions.
        version = session.scalar(
            update(Application)
            .where(Application.number == number)
            .values(region=region, version=Application.version + 1)
            .returning(Application.version)
        )
        if version is None:
            return HTTPStatus.NOT_FOUND
        payload = {"number": number, "region": region}
        enqueue(session, "application.amended", "amendment@1.0", number, version, payload)
    return HTTPStatus.NO_CONTENT


def show(number: str):
    """GET /applications/{number}: the application, and the last decision on it."""
    with Session(ENGINE) as session:
        application = session.get(Application, number)
        if application is None:
            return None
        # The hub put each decision there once, however often it came, and in order: the last counts.
        decision = session.scalar(
            select(Inbox.payload)
            .where(Inbox.aggregate_id == number)
            .order_by(Inbox.seq.desc())
            .limit(1)
        )
        return {
            "number": number,
            "applicant": application.applicant,
            "region": application.region,
            "version": application.version,
            "decision": json.loads(decision) if decision else None,
        }


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        if self.path == "/applications":
            self.answer(submit(self.json()))
        else:
            self.answer(HTTPStatus.NOT_FOUND)

    def do_PUT(self):
        change = self.json()
        self.answer(amend(self.number(), change))

    def do_GET(self):
        found = show(self.number())
        self.answer(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND, found)

    def number(self) -> str:
        return unquote(self.path.removeprefix("/applications/"))

    def json(self):
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, status: HTTPStatus, value=None):
        body = b"" if value is None else json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    host, port = os.environ.get("LISTEN", "127.0.0.1:8090").split(":")
    ThreadingHTTPServer((host, int(port)), Service).serve_forever()
