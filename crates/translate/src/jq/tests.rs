//! Claims about what expressions may do, and what stops those that do more.

use std::time::Duration;

use super::*;

fn run(text: &str, input: &str) -> Result<String, String> {
    let jq = Jq::compile(text, &[]).map_err(|e| e.to_string())?;
    let outputs =
        jq.run(&Json::parse(input.as_bytes()).unwrap(), &[]).map_err(|e| e.to_string())?;
    let outputs: Vec<_> = outputs
        .iter()
        .map(|json| String::from_utf8(json.to_bytes(10_000).unwrap()).unwrap())
        .collect();
    Ok(outputs.join(" "))
}

#[test]
fn jq_does_what_jq_does() {
    for (text, input, output) in [
        (".a.b", r#"{"a":{"b":"x"}}"#, r#""x""#),
        ("[.[] | select(.n > 1) | .n]", r#"[{"n":1},{"n":2}]"#, "[2]"),
        ("[limit(3; repeat(1))]", "null", "[1,1,1]"),
        ("[.[] | recurse(.c[]?) | .n]", r#"[{"n":1,"c":[{"n":2}]}]"#, "[1,2]"),
        ("[..]", "[[1]]", "[[[1]],[1],1]"),
        ("[range(3)], [range(1; 9; 3)]", "null", "[0,1,2] [1,4,7]"),
        ("[1 | while(. < 9; . * 2)], (1 | until(. > 9; . * 2))", "null", "[1,2,4,8] 16"),
        ("def f(g): g + 1; def h: f(2); h", "null", "3"),
        (r#"map(ascii_downcase) | join("-")"#, r#"["A","B"]"#, r#""a-b""#),
        (r#"capture("(?<y>\\d+)-(?<m>\\d+)")"#, r#""2026-11""#, r#"{"y":"2026","m":"11"}"#),
        (
            "[.[] | tonumber]",
            r#"["007","-0.50","12345678901234567890123",0.10]"#,
            "[7,-0.50,12345678901234567890123,0.10]",
        ),
        (".s | fromjson | .n", r#"{"s":"{\"n\": 0.10}"}"#, "0.10"),
        ("walk(if type == \"number\" then . + 1 else . end)", "[1,[2]]", "[2,[3]]"),
        ("[paths]", r#"{"a":[1]}"#, r#"[["a"],["a",0]]"#),
        ("first(range(10; 0; -1)), isempty(empty), any(. > 1; .)", "1", "10 true false"),
        ("try error(\"x\") catch .", "null", "\"x\""),
        ("(recurse(.[]?) | numbers) |= . + 1", "[1,[2]]", "[2,[3]]"),
    ] {
        assert_eq!(run(text, input), Ok(output.to_owned()), "{text}");
    }
}

#[test]
fn every_digit_survives_an_expression() {
    for text in [
        r#"{"id":9007199254740993,"ref":8202522731445525542,"n":12345678901234567890123}"#,
        r#"{"amt":0.10,"b":4.81,"c":1.0,"d":117.63331139400017}"#,
    ] {
        assert_eq!(run(".", text), Ok(text.to_owned()));
        assert_eq!(run("to_entries | from_entries", text), Ok(text.to_owned()));
        assert_eq!(run("tojson | fromjson", text), Ok(text.to_owned()));
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (text, error) in [
        (".a | [", "expected closing bracket, found the end (at character 7)"),
        (".a |", "expected an expression, found the end (at character 5)"),
        (".a\n| foo(1; 2)", "there is no function `foo` with 2 arguments (line 2, character 3)"),
        (".a == $partner", "there is no variable `$partner` (at character 7)"),
        ("if . then 1", "expected else or end, found the end (at character 12)"),
        (".a §", "expected token, found `§` (at character 4)"),
        ("", "expected an expression, found the end (at character 1)"),
        ("import \"x\" as x; .", "modules cannot be imported or included (at character 1)"),
        ("$ENV", "there is no variable `$ENV` (at character 1)"),
    ] {
        assert_eq!(run(text, "null"), Err(error.to_owned()), "{text}");
    }
}

#[test]
fn an_expression_sees_the_message_alone() {
    for text in [
        "env",
        "halt",
        "halt_error",
        "halt(1)",
        "now",
        "localtime",
        "strflocaltime(\"x\")",
        "debug",
        "debug(1)",
        "stderr",
        "input",
        "inputs",
        "$__loc__",
        "input_filename",
        "get_search_list",
    ] {
        let error = Jq::compile(text, &[]).unwrap_err();
        assert!(
            matches!(error.kind, JqErrorKind::Unknown | JqErrorKind::Syntax),
            "{text}: {error}"
        );
    }
    let error = Jq::compile("now", &[]).unwrap_err().to_string();
    assert_eq!(
        error,
        "`now` is not available: what a rule yields depends on the message alone (at character 1)"
    );
}

#[test]
fn a_definition_that_calls_itself_is_refused() {
    for text in [
        "def f: f; f",
        "def f: 1 + f; f",
        "def f: 1; def f: f + 1; f",
        "def f(x): f(x + 1); f(1)",
        "def f: def g: f; g; f",
        "def f: [.[] | f]; f",
        "def f: if . then \"\\(f)\" else . end; f",
        "def f: . as [$a, {(f): $b}] | 1; f",
        "1 | (def f: .a[f]; f)",
        "def f: reduce .[] as $x (0; f); f",
    ] {
        let error = Jq::compile(text, &[]).unwrap_err();
        assert_eq!(error.kind, JqErrorKind::Recursive, "{text}: {error}");
    }
    for text in [
        "def f: 1; def g: f; def h: g; h",
        "def f(f): f; f(1)",
        "def f: def f: 1; f; f",
        "def f(x): x; f(f(1))",
    ] {
        assert!(run(text, "null").is_ok(), "{text}: {:?}", run(text, "null"));
    }
}

#[test]
fn a_loop_without_an_end_is_stopped_and_leaves_no_thread_behind() {
    // Steps stop them, so that the time does not matter here.
    let budget = Budget { time: Duration::from_secs(60), steps_max: 5_000, ..Budget::default() };
    let evaluators = Evaluators::new(budget, 1, 0);
    for text in [
        "[repeat(1)]",
        "repeat(empty)",
        "last(range(1e18))",
        "reduce range(1e18) as $i (0; . + $i)",
        "[recurse(. + 1)]",
        "until(false; .)",
        "[while(true; .)] | length",
        "try repeat(error) catch 1 | repeat(empty)",
        "repeat(try last(repeat(1)) catch empty)",
        "label $out | foreach repeat(1) as $x (0; . + 1; if . > 1e9 then ., break $out else empty end)",
    ] {
        let jq = Jq::compile(text, &[]).unwrap().on(Arc::clone(&evaluators));
        let error = jq.run(&Json::NULL, &[]).unwrap_err();
        assert_eq!(error.kind, JqErrorKind::Budget, "{text}: {error}");
    }
    assert_eq!(evaluators.abandoned(), 0);
    let fine = Jq::compile("1", &[]).unwrap().on(evaluators);
    assert!(fine.run(&Json::NULL, &[]).is_ok());
}

#[test]
fn a_value_as_deep_as_a_loop_can_make_it_is_refused_and_ends_nothing() {
    let budget = Budget { time: Duration::from_secs(60), ..Budget::default() };
    let evaluators = Evaluators::new(budget, 1, 0);
    for text in ["reduce range(99999) as $i (1; [.])", "reduce range(99999) as $i (1; {a: .})"] {
        let jq = Jq::compile(text, &[]).unwrap().on(Arc::clone(&evaluators));
        let error = jq.run(&Json::NULL, &[]).unwrap_err();
        assert_eq!(error.kind, JqErrorKind::Budget, "{text}: {error}");
    }
}

#[test]
fn a_number_in_a_message_cannot_take_all_memory() {
    let input = r#"{"price":"1200","quantity":9000000000000,"more":90000000000000000000}"#;
    for text in [
        ".price * .quantity",
        ".quantity * .price",
        ".price * .more",
        ".price *= (2, .quantity)",
        ".[\"price\"] |= . * 9e12",
        "def total: .price * .quantity; total",
        "{a: (.price * .quantity)}",
        "\"\\(.price * .quantity)\"",
        "[.price * .quantity] | length",
        "if .price * .quantity then 1 else 2 end",
        "reduce range(60) as $i (\"xx\"; . + .)",
        "reduce range(60) as $i (\"xx\"; . += .)",
        "reduce range(60) as $i (\"xx\"; \"\\(.)\\(.)\")",
        "reduce range(60) as $i ([1, 2]; [.[], .[]])",
    ] {
        let error = run(text, input).unwrap_err();
        let expected =
            ["makes a text or list that is too large", "cannot calculate \"1200\" * 9e12"];
        assert!(
            expected.contains(&error.as_str()) || error.starts_with("took longer"),
            "{text}: {error}"
        );
    }
}

#[test]
fn sums_and_products_are_what_they_were() {
    for (text, output) in [
        (
            "2 * 3, \"ab\" * 2, 0.5 * 4, {a: {b: 1}} * {a: {c: 2}}",
            r#"6 "abab" 2.0 {"a":{"b":1,"c":2}}"#,
        ),
        ("\"ab\" * 0", "null"),
        ("{a: 2} | .a *= 3, .a += 4", r#"{"a":6} {"a":6}"#),
        ("[(1, 2) * (3, 4)]", "[3,4,6,8]"),
        ("[(1, 2) + (30, 40)]", "[31,41,32,42]"),
        (
            "[1] + [2], {a: 1} + {b: 2}, 9007199254740993 + 0",
            r#"[1,2] {"a":1,"b":2} 9007199254740993"#,
        ),
        ("1 as $x | 2 | . * $x + $x * 10", "12"),
        ("{\"a\\(1)\": 2, (\"b\" + \"c\"): 3}", r#"{"a1":2,"bc":3}"#),
        ("[2, 3] as [$a, $b] | $a * $b", "6"),
    ] {
        assert_eq!(run(text, "null"), Ok(output.to_owned()), "{text}");
    }
}

#[test]
fn too_many_or_too_large_values_are_stopped() {
    let budget = Budget { outputs_max: 3, output_bytes_max: 20, ..Budget::default() };
    let evaluators = Evaluators::new(budget, 1, 0);
    for (text, error) in [
        ("range(9)", "yields more than 3 values"),
        ("\"x\" * 30", "yields more than 20 bytes, or nests deeper than 128"),
        ("\"xxxxxx\" | ., ., .", "yields more than 20 bytes, or nests deeper than 128"),
    ] {
        let jq = Jq::compile(text, &[]).unwrap().on(Arc::clone(&evaluators));
        assert_eq!(jq.run(&Json::NULL, &[]).unwrap_err().to_string(), error);
    }
}

#[test]
fn text_that_nests_deep_is_refused_and_ends_nothing() {
    for text in [
        "(".repeat(30_000) + "1" + &")".repeat(30_000),
        "[".repeat(60_000),
        "-".repeat(60_000) + "1",
        "1 | ".repeat(15_000) + "1",
        "if ".repeat(20_000),
        "1+".repeat(30_000) + "1",
        "def f: ".repeat(9_000),
        "\"\\(".repeat(20_000),
        "1 as $x | ".repeat(1_900) + "1",
        "try ".repeat(9_000) + "1",
        "if 1 then ".repeat(3_000) + "1",
        "if 1 then 1 elif ".repeat(1_900) + "1",
        "reduce ".repeat(9_000),
        ". as [".to_owned() + &"[".repeat(50_000),
        "x".repeat(70_000),
    ] {
        assert!(Jq::compile(&text, &[]).is_err(), "{} was taken", &text[..10]);
    }
}

#[test]
fn data_that_nests_deep_inside_a_string_ends_nothing() {
    let input = format!(r#"{{"s":"{}"}}"#, "[".repeat(200_000));
    let error = run(".s | fromjson", &input).unwrap_err();
    assert_eq!(error, "fromjson: nests deeper than 128 at byte 128");
    assert!(run(".s | tonumber", &input).is_err());
}

#[test]
fn a_run_past_its_time_is_left_behind_and_only_so_many_are() {
    let budget = Budget { time: Duration::from_millis(20), ..Budget::default() };
    let evaluators = Evaluators::new(budget, 1, 1);
    // Ends only when the test says so, like an expression that is stuck in one long step.
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let stuck = || {
        let gate = Arc::clone(&gate);
        evaluators.run(move |_| gate.lock().unwrap().recv().is_ok())
    };
    assert_eq!(stuck().unwrap_err().to_string(), "took longer than 20ms");
    assert_eq!(evaluators.abandoned(), 1);
    // Another thread has taken its place.
    assert_eq!(evaluators.run(|_| 7), Ok(7));
    assert_eq!(stuck().unwrap_err().kind, JqErrorKind::Budget);
    let error = evaluators.run(|_| 7).unwrap_err();
    assert_eq!(error.kind, JqErrorKind::Busy);
    assert!(error.message.starts_with("2 expressions ran out of time"), "{error}");
    // Once they end, all is as before.
    release.send(()).unwrap();
    release.send(()).unwrap();
    while evaluators.abandoned() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(evaluators.run(|_| 7), Ok(7));
}

#[test]
fn a_panic_is_an_error_and_the_thread_goes_on() {
    let evaluators = Evaluators::new(Budget::default(), 1, 0);
    for _ in 0..3 {
        let error = evaluators.run(|_| -> u8 { panic!("on purpose") }).unwrap_err();
        assert_eq!(error.message, "it made the evaluator panic");
    }
    assert_eq!(evaluators.run(|_| 7), Ok(7));
}

#[test]
fn many_callers_share_a_few_threads() {
    let jq = Jq::compile(".n + $m", &["m"]).unwrap();
    std::thread::scope(|scope| {
        for n in 0..16 {
            let jq = jq.clone();
            scope.spawn(move || {
                for m in 0..50 {
                    let input = Json::object([("n", Json::integer(n))]);
                    let outputs = jq.run(&input, &[Json::integer(m)]).unwrap();
                    assert_eq!(outputs[0].as_plain_text(), Some((n + m).to_string()));
                }
            });
        }
    });
}
