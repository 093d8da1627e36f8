// A service that takes application forms. The form and the message that tells others of it are
// written in one transaction; decisions come back into its inbox table.
//
//   npm ci
//   DATABASE_URL=postgres://… node app.js
//   curl -d '{"number": "A-1", "applicant": "Kim", "region": "11"}' http://127.0.0.1:8090/applications

import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import pg from "pg";
import { enqueue } from "./outbox.js";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
// A connection that is lost while nobody uses it is made again when somebody does.
pool.on("error", (error) => console.error(error.message));

/** Everything that `work` does on its client is committed together, or none of it. */
async function transaction(work) {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const result = await work(client);
    await client.query("COMMIT");
    client.release();
    return result;
  } catch (error) {
    client.release(true); // closes the connection, and the transaction with it
    throw error;
  }
}

/** POST /applications: 201 if the form was taken, 200 if it was before. */
async function submit({ number, applicant, region }) {
  return transaction(async (client) => {
    const { rowCount } = await client.query(
      `INSERT INTO application (number, applicant, region) VALUES ($1, $2, $3)
       ON CONFLICT (number) DO NOTHING`,
      [number, applicant, region],
    );
    if (rowCount === 0) return [200];
    await enqueue(client, {
      type: "application.submitted",
      schema: "application@1.0",
      number,
      version: 1,
      payload: { number, applicant, region },
    });
    return [201];
  });
}

/** PUT /applications/{number}: the applicant has moved. */
async function amend(number, { region }) {
  return transaction(async (client) => {
    // The row first: whoever changes the same application at the same time waits here, so that its
    // messages are written in the order of its versions.
    const { rows } = await client.query(
      `UPDATE application SET region = $2, version = version + 1 WHERE number = $1
       RETURNING version`,
      [number, region],
    );
    if (rows.length === 0) return [404];
    await enqueue(client, {
      type: "application.amended",
      schema: "amendment@1.0",
      number,
      version: rows[0].version,
      payload: { number, region },
    });
    return [204];
  });
}

/** GET /applications/{number}: the application, and the last decision on it. */
async function show(number) {
  const select = "SELECT number, applicant, region, version FROM application WHERE number = $1";
  const [application] = (await pool.query(select, [number])).rows;
  if (!application) return [404];
  // The hub put each decision there once, however often it came, and in order: the last counts.
  const [decision] = (
    await pool.query(
      "SELECT payload FROM inbox WHERE aggregate_id = $1 ORDER BY seq DESC LIMIT 1",
      [number],
    )
  ).rows;
  application.version = Number(application.version);
  return [200, { ...application, decision: decision ? JSON.parse(decision.payload) : null }];
}

async function route(request) {
  const [, applications, number] = request.url.split("/").map(decodeURIComponent);
  if (applications !== "applications") return [404];
  if (request.method === "POST" && !number) return submit(await json(request));
  if (request.method === "PUT" && number) return amend(number, await json(request));
  if (request.method === "GET" && number) return show(number);
  return [405];
}

const server = createServer(async (request, response) => {
  let answer = [500];
  try {
    answer = await route(request);
  } catch (error) {
    console.error(error);
  }
  const [status, body] = answer;
  response.writeHead(status, { "content-type": "application/json" });
  response.end(body && JSON.stringify(body));
});

const [host, port] = (process.env.LISTEN ?? "127.0.0.1:8090").split(":");
server.listen(Number(port), host);
