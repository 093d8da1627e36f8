"""An application that fetches its messages from a hub, with nothing but Python's own library.

    puller.py BOOK COUNT CRASH SEED URL...     fetches until BOOK has COUNT messages and no more come
    puller.py BOOK show                        prints BOOK, one JSON document a line

What it does with a message is one transaction of its own database: the row that says that the message
was taken, and the effect. A repeat changes nothing. Only after the commit it acknowledges.

CRASH is the chance, from 0 to 1, that the process is killed at each of the moments that matter. The
URLs are those of the nodes of one hub; the bearer token is in PULL_TOKEN.
"""

import base64, json, os, random, signal, sqlite3, sys, time, urllib.error, urllib.request


def open_book(path):
    book = sqlite3.connect(path, timeout=30)
    book.execute(
        "CREATE TABLE IF NOT EXISTS taken (place INTEGER PRIMARY KEY AUTOINCREMENT, "
        "id TEXT UNIQUE NOT NULL, key TEXT, origin TEXT, body TEXT, seen INTEGER NOT NULL)"
    )
    book.commit()
    return book


def call(method, url, said=None):
    request = urllib.request.Request(url, method=method, data=said and json.dumps(said).encode())
    request.add_header("Authorization", "Bearer " + os.environ["PULL_TOKEN"])
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"[]")


def main(book, count, crash, seed, urls):
    draw = random.Random(seed)

    def perhaps_crash():
        if draw.random() < crash:
            os.kill(os.getpid(), signal.SIGKILL)

    def enough():
        return book.execute("SELECT count(*) FROM taken").fetchone()[0] >= count

    while True:
        try:
            # Any node will do, and not always the same one for a message and its answer.
            events = call("GET", draw.choice(urls) + "/pull?max=4&wait=2")
            # What was taken and not acknowledged comes again within the lease, which is shorter.
            if not events and enough():
                return
            tokens = []
            for event in events:
                if "data" in event:
                    body = json.dumps(event["data"], separators=(",", ":"))
                else:
                    body = base64.b64decode(event.get("data_base64", "")).decode()
                with book:  # one transaction
                    book.execute(
                        "INSERT INTO taken (id, key, origin, body, seen) VALUES (?, ?, ?, ?, 1) "
                        "ON CONFLICT (id) DO UPDATE SET seen = seen + 1",
                        (event["id"], event.get("partitionkey"), event.get("originid"), body),
                    )
                tokens.append(event["pulltoken"])
                perhaps_crash()
            if tokens:
                call("POST", draw.choice(urls) + "/ack", {"tokens": tokens})
                perhaps_crash()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            # The hub is away, or another node is: come again.
            time.sleep(0.05)


if __name__ == "__main__":
    book = open_book(sys.argv[1])
    if sys.argv[2] == "show":
        for row in book.execute("SELECT id, key, origin, body, seen FROM taken ORDER BY place"):
            print(json.dumps(dict(zip(("id", "key", "origin", "body", "seen"), row))))
    else:
        main(book, int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
