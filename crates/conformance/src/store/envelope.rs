//! What was taken comes back as it came.

use pabal_core::*;

use super::bench::*;

/// Both ways a message comes back.
async fn assert_survives(bench: &Bench, new: &NewMessage) {
    let delivery = bench.deliver(new).await;
    let which = [(delivery.number, delivery.message)];
    let loaded = bench.store().load(&which).await.unwrap().remove(0).unwrap();
    assert_same(&loaded.message, &new.message);
    assert_eq!(loaded.written, None);
    let content = bench.store().message_content(new.message.id).await;
    assert_same(&content.unwrap().unwrap(), &new.message);
}

pub(super) async fn every_field_survives(bench: Bench) {
    let mut message = arrival("p/in", "접수-2026/001 ' \" % _ \\ \u{1F4E8}").message;
    message.origin.source = "//시청/접수?a=b&c".to_owned();
    message.message_type = "신청.접수".to_owned();
    message.key = Some("서울특별시 e\u{301}".to_owned());
    message.version = Some(i64::MAX);
    message.schema = Some("urn:pabal:schema:decision:1.0".to_owned());
    message.content_type = Some("text/xml; charset=\"euc-kr\"".to_owned());
    message.time = Some("2026-11-30T09:00:00.123456789+09:00".to_owned());
    message.subject = Some("subject".to_owned());
    message.correlation = Some("correlation".to_owned());
    message.causation = Some("causation".to_owned());
    message.trace = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    message.destination = Some("q/out".to_owned());
    message.headers = [
        ("X-Order", "1"),
        ("x-order", "2"),
        ("비고", "값 \"인용\", 줄\r\n바꿈"),
        ("empty", ""),
        ("escape", "\\u0000 \u{1b}[0m"),
        ("A-Last", "z"),
    ]
    .into_iter()
    .collect();
    message.arrival = Arrival {
        redeliveries: 4,
        origin_time: Some("2026-11-30T00:00:00.123456789Z".parse().unwrap()),
        hops: 15,
        ..Arrival::default()
    };
    assert_survives(&bench, &identified(message).to(&["q/out"])).await;

    let mut negative = arrival("p/in", "2").to(&["q/out"]);
    negative.message.version = Some(i64::MIN);
    negative.message.key = Some(String::new());
    assert_survives(&bench, &negative).await;
    let plain = arrival("p/in", "3").to(&["q/out"]);
    assert_survives(&bench, &plain).await;
}

pub(super) async fn every_byte_of_a_body_survives(bench: Bench) {
    let large: Vec<u8> =
        (0..BODY_BYTES_MAX).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let bodies: [Bytes; 6] = [
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"before\0after\0"),
        Bytes::from((0..=255).rev().collect::<Vec<u8>>()),
        Bytes::from_static(br#"{ "n": 12345678901234567890, "d": 1.10, "n": 1e400 }"#),
        Bytes::from(large),
    ];
    for (n, body) in bodies.into_iter().enumerate() {
        let new = arrival("p/in", &n.to_string()).to(&["q/out"]).body(body);
        assert_survives(&bench, &new).await;
    }
}

pub(super) async fn a_body_kept_elsewhere_is_named(bench: Bench) {
    let mut new = arrival("p/in", "1").to(&["q/out"]);
    new.message.body = Body::Stored(BodyReference {
        place: "2026/11/30/some thing".to_owned(),
        size: 5 << 30,
        sha256: [0xA5; 32],
    });
    assert_survives(&bench, &new).await;
    assert_eq!(bench.story(new.message.id).await.summary.size, 5 << 30);
}
