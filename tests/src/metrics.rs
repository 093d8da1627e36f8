//! What `/metrics` says, in the Prometheus text format.

/// One scrape.
#[derive(Debug, Clone)]
pub struct Metrics(pub String);

impl Metrics {
    /// The lines of all series of this name.
    #[must_use]
    pub fn lines(&self, name: &str) -> String {
        let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        self.0.lines().filter(of_name).collect::<Vec<_>>().join("\n")
    }

    /// The sum over all series of this name that have all of these labels; `None` if there is none.
    #[must_use]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.0
            .lines()
            .filter_map(|line| {
                let (series, value) = line.split_once(['}', ' '])?;
                let (series_name, series_labels) = series.split_once('{').unwrap_or((series, ""));
                let fits = series_name == name
                    && labels.iter().all(|(label, value)| {
                        let wanted = format!("{label}=\"{value}\"");
                        series_labels.split(',').any(|one| one == wanted)
                    });
                // A time or an exemplar may follow.
                let value = value.split_whitespace().next()?;
                fits.then(|| value.parse::<f64>().ok())?
            })
            .reduce(|one, other| one + other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_found_by_name_and_labels() {
        let metrics = Metrics(
            "# TYPE waiting gauge\n\
             waiting{destination=\"a/b\",why=\"x\"} 3\n\
             waiting{destination=\"a/c\",why=\"x\"} 4\n\
             up 1\n"
                .into(),
        );
        for (name, labels, expected) in [
            ("waiting", &[("destination", "a/b")][..], Some(3.0)),
            ("waiting", &[("why", "x")], Some(7.0)),
            ("waiting", &[("destination", "a")], None),
            ("wait", &[], None),
            ("up", &[], Some(1.0)),
        ] {
            assert_eq!(metrics.value(name, labels), expected, "{name} {labels:?}");
        }
        assert_eq!(metrics.lines("up"), "up 1");
    }
}
