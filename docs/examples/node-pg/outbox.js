// The outbox table: one INSERT, in the transaction of whoever calls.

import { randomBytes } from "node:crypto";

/** Adds a message to the transaction of this client; it is sent if that is committed. */
export async function enqueue(client, { type, schema, number, version, payload }) {
  await client.query(
    `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, schema_version,
                         version, correlation_id)
     VALUES ($1, 'application', $2, $3, $4, $5, $6, $2)`,
    [uuid7(), number, type, Buffer.from(JSON.stringify(payload)), schema, version],
  );
}

/** Made here, when the message is written: every attempt to send it carries the same id. */
function uuid7() {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  return bytes.toString("hex").replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
}
