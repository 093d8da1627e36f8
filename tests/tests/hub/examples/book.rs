//! What the service committed, held against what the citizens were told.

use std::collections::BTreeMap;

use pabal_tests::Postgres;

use super::citizens::Experience;

/// What stands in the service's database.
pub(crate) struct Written {
    /// Version of each form by its number.
    forms: BTreeMap<String, i64>,
    /// Id, form and version of each message, in the order of the rows.
    messages: Vec<(String, String, i64)>,
}

impl Written {
    pub(crate) async fn read(postgres: &Postgres) -> Self {
        let forms = postgres.ask("SELECT number, version FROM application").await;
        let forms = forms.lines().map(|line| {
            let [number, version] = fields(line);
            (number.to_owned(), version.parse().unwrap())
        });
        let messages = "SELECT id, aggregate_id, version FROM outbox ORDER BY seq";
        let messages = postgres.ask(messages).await;
        let messages = messages.lines().map(|line| {
            let [id, number, version] = fields(line);
            (id.to_owned(), number.to_owned(), version.parse().unwrap())
        });
        Self { forms: forms.collect(), messages: messages.collect() }
    }

    /// What the service answered for is there.
    pub(crate) fn holds_what_was_answered(&self, citizens: &Experience) {
        assert!(citizens.cut_off > 0, "no kill hit a request");
        for number in &citizens.taken {
            assert!(self.forms.contains_key(number), "{number} was taken and is gone");
        }
        let mut amendments = BTreeMap::<&str, i64>::new();
        for number in &citizens.amended {
            *amendments.entry(number).or_default() += 1;
        }
        for (number, count) in amendments {
            assert!(self.forms[number] > count, "{number}: a change was taken and is gone");
        }
    }

    /// Each version of each form has one message, in order, and nothing else has one.
    pub(crate) fn has_a_message_for_each_version(&self) {
        let mut written = BTreeMap::<&str, Vec<i64>>::new();
        for (_, number, version) in &self.messages {
            assert!(self.forms.contains_key(number), "{number}: a message without its form");
            written.entry(number).or_default().push(*version);
        }
        for (number, version) in &self.forms {
            let in_order: Vec<i64> = (1..=*version).collect();
            assert_eq!(written.get(number.as_str()), Some(&in_order), "{number}");
        }
        eprintln!("{} forms, {} messages", self.forms.len(), self.messages.len());
    }
}

fn fields<const N: usize>(line: &str) -> [&str; N] {
    line.split('|').collect::<Vec<_>>().try_into().unwrap()
}
