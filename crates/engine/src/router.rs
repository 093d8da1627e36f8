//! Who gets a message: a pure function of the destinations' subscriptions and the message.

use std::sync::Arc;

use pabal_core::{
    Cause, EndpointName, Message, Predicate, Reason, RuleError, SendError, TypePattern, View,
};

use crate::{Destination, edge};

/// The subscriptions of all destinations.
#[derive(Debug)]
pub(crate) struct Router {
    subscriptions: Vec<Subscription>,
}

#[derive(Debug)]
struct Subscription {
    destination: EndpointName,
    takes: Vec<TypePattern>,
    from: Vec<EndpointName>,
    when: Option<Arc<dyn Predicate>>,
}

/// Who gets it, and who could not be asked.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Routed {
    pub(crate) destinations: Vec<EndpointName>,
    pub(crate) faults: Vec<(EndpointName, String)>,
}

impl Router {
    pub(crate) fn new(destinations: &[Destination]) -> Self {
        let subscriptions = destinations
            .iter()
            .map(|destination| Subscription {
                destination: destination.name.clone(),
                takes: destination.takes.clone(),
                from: destination.from.clone(),
                when: destination.when.clone(),
            })
            .collect();
        Self { subscriptions }
    }

    /// Whether any rule has to be evaluated: rules may take their time.
    pub(crate) fn has_rules(&self) -> bool {
        self.subscriptions.iter().any(|subscription| subscription.when.is_some())
    }

    /// Routes one message; `address` is the one destination it names.
    ///
    /// # Errors
    /// If it names a destination that does not exist, or a condition has no answer now.
    pub(crate) fn route(
        &self,
        message: &Message,
        address: Option<EndpointName>,
    ) -> Result<Routed, SendError> {
        let mut routed = Routed::default();
        if let Some(address) = address {
            if !self.subscriptions.iter().any(|s| s.destination == address) {
                return Err(edge::refusal(
                    Reason::Refused,
                    format!("there is no destination {address}"),
                ));
            }
            routed.destinations.push(address);
            return Ok(routed);
        }
        let view = View::new(message);
        for subscription in &self.subscriptions {
            match subscription.wants(message, &view) {
                Ok(true) => routed.destinations.push(subscription.destination.clone()),
                Ok(false) => {}
                Err(RuleError::Fault(fault)) => {
                    routed.faults.push((subscription.destination.clone(), fault));
                }
                Err(RuleError::Busy(why)) => {
                    let cause = Cause::with("a condition could not be evaluated now", why);
                    return Err(SendError::transient(cause));
                }
            }
        }
        Ok(routed)
    }

    /// Asks one destination, as for a replayed question.
    pub(crate) fn ask(
        &self,
        destination: &EndpointName,
        message: &Message,
    ) -> Result<bool, String> {
        self.subscriptions
            .iter()
            .find(|subscription| subscription.destination == *destination)
            .ok_or_else(|| format!("there is no destination {destination} any more"))?
            .wants(message, &View::new(message))
            .map_err(|error| error.to_string())
    }
}

impl Subscription {
    fn wants(&self, message: &Message, view: &View<'_>) -> Result<bool, RuleError> {
        if !self.takes.iter().any(|pattern| pattern.matches(&message.message_type)) {
            return Ok(false);
        }
        let listens = if self.from.is_empty() {
            // Never back to where it came from, unless `from` names it.
            self.destination.partner() != message.source.partner()
        } else {
            self.from.contains(&message.source)
        };
        if !listens {
            return Ok(false);
        }
        self.when.as_ref().map_or(Ok(true), |when| when.test(view))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct BodyIs(&'static str);

    impl Predicate for BodyIs {
        fn test(&self, view: &View<'_>) -> Result<bool, RuleError> {
            match view.message.body.inline().map(AsRef::as_ref) {
                Some(b"?") => Err(RuleError::Fault("not a boolean".into())),
                body => Ok(body == Some(self.0.as_bytes())),
            }
        }
    }

    #[derive(Debug)]
    struct Nobody;

    #[async_trait::async_trait]
    impl pabal_core::Sender for Nobody {
        fn limits(&self) -> pabal_core::Limits {
            pabal_core::Limits::one_by_one(1)
        }
        fn wire_size(&self, _: &Message) -> usize {
            0
        }
        async fn send(&self, _: &[Message]) -> Vec<pabal_core::Verdict> {
            Vec::new()
        }
    }

    fn router() -> Router {
        let to = |name: &str, takes: &[&str]| {
            Destination::new(name.parse().unwrap(), takes, Arc::new(Nobody))
        };
        let mut conditional = to("tax/red", &["order.*"]);
        conditional.when = Some(Arc::new(BodyIs("red")));
        let mut echo = to("city/back", &["*"]);
        echo.from = vec!["city/orders".parse().unwrap()];
        Router::new(&[
            to("tax/all", &["order.*", "invoice.*"]),
            conditional,
            to("city/own", &["*"]),
            echo,
        ])
    }

    fn routed(source: &str, message_type: &str, body: &'static str) -> (Vec<String>, usize) {
        let message = Message::new(source.parse().unwrap(), message_type, body);
        let routed = router().route(&message, None).unwrap();
        (routed.destinations.iter().map(ToString::to_string).collect(), routed.faults.len())
    }

    #[test]
    fn a_destination_gets_what_it_takes_from_whom_it_listens_to_and_when_it_says() {
        assert_eq!(
            routed("city/orders", "order.made", "red").0,
            ["tax/all", "tax/red", "city/back"]
        );
        assert_eq!(routed("city/orders", "order.made", "blue").0, ["tax/all", "city/back"]);
        assert_eq!(routed("city/other", "order.made", "blue").0, ["tax/all"]);
        assert_eq!(routed("bank/x", "invoice.paid", "").0, ["tax/all", "city/own"]);
        assert!(routed("city/other", "letter", "").0.is_empty());
    }

    #[test]
    fn a_rule_that_cannot_be_evaluated_is_a_fault_and_never_a_no() {
        assert_eq!(
            routed("bank/x", "order.made", "?"),
            (vec!["tax/all".into(), "city/own".into()], 1)
        );
    }

    #[test]
    fn an_addressed_message_reaches_exactly_one() {
        let message = Message::new("city/orders".parse().unwrap(), "order.made", "red");
        let one: EndpointName = "city/own".parse().unwrap();
        let routed = router().route(&message, Some(one.clone())).unwrap();
        assert_eq!(routed, Routed { destinations: vec![one], faults: vec![] });
        assert!(router().route(&message, Some("no/where".parse().unwrap())).is_err());
    }
}
