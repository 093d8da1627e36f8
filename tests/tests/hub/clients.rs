//! Clients that no one here wrote hand over to the hub, and check what it sends.

use pabal_tests::{Hub, Partner, Ran, Request, python, run};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Everything that comes in through one of `town`'s three sources goes out signed.
async fn hub(partner: &Partner, mode: &str) -> Hub {
    let town = r#"
name = "Town"
[source.plain.rest]
auth = { basic = { user = "town", password = { env = "TOWN_PASSWORD" } } }
type = "order.placed"
[source.events.rest]
auth = { bearer = { env = "TOWN_TOKEN" } }
[source.signed.rest]
auth = { standard_webhooks = [{ env = "HUB_SECRET" }] }
type = "order.signed"
"#;
    let welfare = format!(
        r#"
name = "Welfare"
[destination.orders]
takes = ["*"]
[destination.orders.rest]
url = "{}"
mode = "{mode}"
sign = {{ standard_webhooks = [{{ env = "HUB_SECRET" }}] }}
"#,
        partner.url("/orders")
    );
    Hub::setup()
        .partner("town", town)
        .partner("welfare", &welfare)
        .variable("TOWN_PASSWORD", "open sesame")
        .variable("TOWN_TOKEN", "let-me-in")
        .variable("HUB_SECRET", SECRET)
        .start()
        .await
}

async fn the_one_taken(partner: &Partner) -> Request {
    partner.wait_for_taken(1).await.remove(0)
}

#[tokio::test]
async fn curl_hands_over_a_plain_body_and_sees_the_repeat_and_the_conflict() {
    let partner = Partner::start().await;
    let hub = hub(&partner, "raw").await;
    let url = hub.url("/in/town/plain");
    let curl = async |body: &str| -> String {
        let arguments = ["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-u", "town:open sesame"];
        let request = ["-H", "idempotency-key: c-1", "--data-binary", body, &url];
        run("curl", &[&arguments[..], &request].concat(), b"").await.ok().to_owned()
    };
    assert_eq!(curl("주문 1").await, "202");
    assert_eq!(curl("주문 1").await, "200");
    assert_eq!(curl("주문 2").await, "409");
    assert_eq!(the_one_taken(&partner).await.text(), "주문 1");
}

/// Sends and reads with `cloudevents.core`; the arguments are the mode and the URL.
const SEND_EVENT: &str = r#"
import sys, urllib.request
from cloudevents.core.v1.event import CloudEvent
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
mode, url = sys.argv[1:]
event = CloudEvent({"type": "order.placed", "source": "/town/shop", "id": "A-1", "subject": "주문 \"1\" 100%",
                    "datacontenttype": "application/json", "partitionkey": "k"}, {"id": 42, "name": "Zoë"})
message = getattr(http, "to_" + mode)(event, JSONFormat())
headers = {**message.headers, "authorization": "Bearer let-me-in"}
with urllib.request.urlopen(urllib.request.Request(url, message.body, headers)) as answer:
    print(answer.status)
"#;

/// Reads a request from standard input as JSON and prints what the library makes of it.
const READ_EVENT: &str = r#"
import json, sys
from cloudevents.core.bindings import http
from cloudevents.core.formats.json import JSONFormat
request = json.load(sys.stdin)
event = http.from_http(http.HTTPMessage(request["headers"], request["body"].encode()), JSONFormat())
wanted = ("type", "subject", "partitionkey", "originid", "id")
attributes = event.get_attributes()
print(json.dumps({**{name: attributes.get(name) for name in wanted}, "data": event.get_data()}))
"#;

/// Reads a request from standard input as JSON; fails if the signature is not right.
const VERIFY: &str = r#"
import json, sys
from standardwebhooks import Webhook
request = json.load(sys.stdin)
Webhook(sys.argv[1]).verify(request["body"].encode(), request["headers"])
print("good")
"#;

async fn read(script: &str, arguments: &[&str], request: &Request, body: &str) -> Ran {
    let headers: serde_json::Map<_, _> = request
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()))
        .collect();
    let request = serde_json::json!({ "headers": headers, "body": body });
    python(script, arguments, request.to_string().as_bytes()).await
}

#[tokio::test]
async fn the_cloudevents_library_sends_and_reads_binary_and_structured_events() {
    for mode in ["binary", "structured"] {
        let partner = Partner::start().await;
        let hub = hub(&partner, mode).await;
        let url = hub.url("/in/town/events");
        assert_eq!(python(SEND_EVENT, &[mode, &url], b"").await.ok().trim(), "202");
        assert_eq!(python(SEND_EVENT, &[mode, &url], b"").await.ok().trim(), "200");
        let request = the_one_taken(&partner).await;
        let event = read(READ_EVENT, &[], &request, &request.text()).await.json();
        assert_eq!(event["type"], "order.placed", "{mode}: {event}");
        assert_eq!(event["subject"], "주문 \"1\" 100%", "{mode}");
        assert_eq!(event["partitionkey"], "k", "{mode}");
        assert_eq!(event["originid"], "A-1", "{mode}");
        assert_eq!(event["data"], serde_json::json!({ "id": 42, "name": "Zoë" }), "{mode}");
        assert_ne!(event["id"], "A-1", "{mode}: the hub's own id");
        assert_eq!(Some(event["id"].as_str().unwrap()), request.header("webhook-id"), "{mode}");
    }
}

#[tokio::test]
async fn the_standard_webhooks_library_signs_what_comes_in_and_verifies_what_goes_out() {
    const SIGN: &str = r#"
import sys, datetime, urllib.request, urllib.error
from standardwebhooks import Webhook
secret, url, sent = sys.argv[1:]
body, now = '{"amount": 1.0, "name": "홍길동"}', datetime.datetime.now(datetime.timezone.utc)
headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp())),
           "webhook-signature": Webhook(secret).sign("msg_1", now, body), "content-type": "application/json"}
try:
    with urllib.request.urlopen(urllib.request.Request(url, sent.encode(), headers)) as answer:
        print(answer.status)
except urllib.error.HTTPError as error:
    print(error.code)
"#;
    let partner = Partner::start().await;
    let hub = hub(&partner, "raw").await;
    let url = hub.url("/in/town/signed");
    let body = r#"{"amount": 1.0, "name": "홍길동"}"#;
    let other = r#"{"amount":1.0,"name":"홍길동"}"#;
    assert_eq!(python(SIGN, &[SECRET, &url, other], b"").await.ok().trim(), "401", "other bytes");
    assert_eq!(python(SIGN, &[SECRET, &url, body], b"").await.ok().trim(), "202");
    let request = the_one_taken(&partner).await;
    assert_eq!(request.text(), body);
    assert_eq!(read(VERIFY, &[SECRET], &request, body).await.ok().trim(), "good");
    let changed = read(VERIFY, &[SECRET], &request, other).await;
    assert_ne!(changed.code, 0, "the library does check");
}
