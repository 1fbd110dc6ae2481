//! `compare`: compares two observations. Pure.

use std::collections::BTreeSet;

use crate::Observation;
use crate::pattern::matches;
use crate::tolerance::{TOLERANCES, Tolerance, TolerancePolicy};

/// A field whose values differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The field.
    pub field: String,
    /// Its value in the parent; `None` if the parent lacks the field.
    pub parent: Option<String>,
    /// Its value in the child; `None` if the child lacks the field.
    pub child: Option<String>,
}

/// A difference that a tolerance permits.
#[derive(Debug, Clone)]
pub struct ToleratedDifference {
    /// The difference.
    pub difference: Difference,
    /// The table row that permits it.
    pub tolerance: &'static Tolerance,
}

/// The result of a comparison.
#[derive(Debug, Clone, Default)]
pub struct ComparisonReport {
    /// Number of compared fields.
    pub fields: usize,
    /// Differences that no tolerance permits.
    pub differences: Vec<Difference>,
    /// Differences that a tolerance permits.
    pub tolerated: Vec<ToleratedDifference>,
}

/// The signal mask of the restorer: all signals that can be blocked.
const RESTORER_MASK: &str = "fffffffffffbfeff";

/// The value of SO_DOMAIN for a Unix socket: AF_UNIX.
const UNIX: &str = "1";

/// Compares a child with its parent.
#[must_use]
pub fn compare(parent: &Observation, child: &Observation) -> ComparisonReport {
    let mut report = ComparisonReport::default();
    let circumstances = ComparisonContext::new(parent, child);
    let only_in_child = child.keys().filter(|field| !parent.contains_key(*field));
    for field in parent.keys().chain(only_in_child) {
        report.fields += 1;
        let (parent, child) = (parent.get(field), child.get(field));
        if parent == child {
            continue;
        }
        let difference = Difference { field: field.clone(), parent: parent.cloned(), child: child.cloned() };
        match find_tolerance(&difference, &circumstances) {
            Some(tolerance) => report.tolerated.push(ToleratedDifference { difference, tolerance }),
            None => report.differences.push(difference),
        }
    }
    report
}

/// The data for tolerances that depend on more than one field.
struct ComparisonContext<'a> {
    parent: &'a Observation,
    child: &'a Observation,
    /// Field prefixes, such as `7/fd/10/`, of descriptors that are the child's own standard streams.
    streams: BTreeSet<&'a str>,
    /// Ids of processes that are paused before their first instruction.
    paused: BTreeSet<&'a str>,
}

impl<'a> ComparisonContext<'a> {
    fn new(parent: &'a Observation, child: &'a Observation) -> Self {
        let differs = |field: &str| parent.get(field) != child.get(field);
        let number_is_standard = |field: &str| (0..3).any(|number| field.ends_with(&format!("/fd/{number}/link")));
        let mut all = Self { parent, child, streams: BTreeSet::new(), paused: BTreeSet::new() };
        for (field, value) in child {
            let is_own = matches("*/children/*/std*", value) || value == "/dev/null" && number_is_standard(field);
            if let Some(descriptor) = field.strip_suffix("link").filter(|_| is_own && field.contains("/fd/"))
                && (differs(field) || differs(&format!("{descriptor}open file")))
            {
                all.streams.insert(descriptor);
            }
            if field.ends_with("/signal mask") && value == RESTORER_MASK && differs(field) {
                all.paused.insert(field.split('/').next().unwrap_or_default());
            }
        }
        all
    }

    /// Returns the child's value of the field `other` of the descriptor that a difference is about.
    fn descriptor_field(&self, difference: &Difference, other: &str) -> Option<&str> {
        let (process, field) = difference.field.split_once("/fd/")?;
        let number = field.split('/').next()?;
        self.child.get(&format!("{process}/fd/{number}/{other}")).map(String::as_str)
    }

    /// Whether the parent's file had lost the name by which it was opened or mapped.
    fn had_lost_name(&self, difference: &Difference) -> bool {
        let field = difference.field.replace("memory/has name/", "memory/file/").replace("/has name", "/link");
        self.parent.get(&field).is_some_and(|name| name.contains("(deleted)"))
    }

    /// Whether a descriptor refers to a pipe, and the parent has only write ends of this pipe. Only the parent is checked,
    /// because a paused child has additional descriptors of the pipe.
    fn is_unread_pipe(&self, difference: &Difference) -> bool {
        const O_ACCMODE: u64 = 3;
        const O_WRONLY: u64 = 1;
        let Some(pipe) = self.descriptor_field(difference, "link").filter(|link| link.starts_with("pipe of ")) else {
            return false;
        };
        // The flags of an open file are recorded for one of its descriptors only.
        let flags_of =
            |field: &str| self.parent.get(&format!("{field}fcntl/F_GETFL")).and_then(|flags| flags.parse::<u64>().ok());
        let ends = self.parent.iter().filter(|(_, value)| *value == pipe);
        let mut flags = ends.filter_map(|(field, _)| flags_of(field.strip_suffix("link")?));
        flags.all(|flags| flags & O_ACCMODE == O_WRONLY)
    }

    fn permits(&self, policy: TolerancePolicy, difference: &Difference) -> bool {
        let process = difference.field.split('/').next().unwrap_or_default();
        match policy {
            TolerancePolicy::StandardStream => self.streams.iter().any(|stream| difference.field.starts_with(stream)),
            TolerancePolicy::ConnectedSocket => {
                self.descriptor_field(difference, "peer address").is_some_and(|peer| !peer.starts_with("errno"))
            }
            TolerancePolicy::NonListeningSocket => self
                .descriptor_field(difference, "option/SOL_SOCKET/SO_ACCEPTCONN")
                .is_some_and(|listens| listens == "0"),
            TolerancePolicy::UnixSocket => {
                let is_unix = self.descriptor_field(difference, "option/SOL_SOCKET/SO_DOMAIN") == Some(UNIX);
                is_unix && ![&difference.parent, &difference.child].into_iter().flatten().any(|value| value == "0")
            }
            TolerancePolicy::ExistingName => !self.had_lost_name(difference),
            TolerancePolicy::WriteOnlyPipe => self.is_unread_pipe(difference),
            TolerancePolicy::RestorerState => difference.parent.is_none() && self.paused.contains(process),
            TolerancePolicy::UntilFirstStep { child } => {
                self.paused.contains(process) && matches(child, difference.child.as_deref().unwrap_or_default())
            }
            policy => permits_values(policy, difference),
        }
    }
}

fn find_tolerance(difference: &Difference, circumstances: &ComparisonContext<'_>) -> Option<&'static Tolerance> {
    // The part after the process id.
    let field = difference.field.split_once('/').map_or("", |(_, field)| field);
    // Some fields of a process also exist for each of its threads: `thread/71/status/VmRSS`.
    let of_thread = field.strip_prefix("thread/").and_then(|field| field.split_once('/')).map(|(_, field)| field);
    let is_of = |pattern| matches(pattern, field) || of_thread.is_some_and(|field| matches(pattern, field));
    TOLERANCES.iter().find(|row| is_of(row.field) && circumstances.permits(row.policy, difference))
}

fn permits_values(policy: TolerancePolicy, difference: &Difference) -> bool {
    /// First byte of the address in a `struct sockaddr_in`, in hexadecimal.
    const LOOPBACK: &str = "7f";
    let (parent, child) = (difference.parent.as_deref(), difference.child.as_deref());
    match policy {
        TolerancePolicy::AnyValue | TolerancePolicy::Volatile => true,
        // These policies depend on other fields: `ComparisonContext::permits` decides.
        TolerancePolicy::StandardStream
        | TolerancePolicy::ConnectedSocket
        | TolerancePolicy::NonListeningSocket
        | TolerancePolicy::UnixSocket
        | TolerancePolicy::ExistingName
        | TolerancePolicy::WriteOnlyPipe
        | TolerancePolicy::RestorerState
        | TolerancePolicy::UntilFirstStep { .. } => false,
        TolerancePolicy::ChangesTo { parent: expected, child: value }
        | TolerancePolicy::KnownGap { parent: expected, child: value, .. } => {
            let is = |pattern: &str, value: Option<&str>| matches(pattern, value.unwrap_or_default());
            is(expected, parent) && is(value, child)
        }
        TolerancePolicy::LoopbackAddress => {
            let network =
                |address: &Option<String>| address.as_deref()?.strip_prefix("0200")?.get(4..6).map(str::to_owned);
            let (before, now) = (network(&difference.parent), network(&difference.child));
            before.is_some_and(|network| network != LOOPBACK) && now.as_deref() == Some(LOOPBACK)
        }
        TolerancePolicy::WithinDistance(most) => {
            parse_numbers(difference).is_some_and(|(parent, child)| parent.abs_diff(child) <= most)
        }
        TolerancePolicy::ExtraBit(bit) => {
            parse_numbers(difference).is_some_and(|(parent, child)| parent & bit == 0 && parent | bit == child)
        }
    }
}

/// Parses the parent's and the child's value as numbers. Octal numbers begin with 0.
fn parse_numbers(difference: &Difference) -> Option<(u64, u64)> {
    let number = |value: &Option<String>| {
        let value = value.as_deref()?;
        u64::from_str_radix(value, if value.starts_with('0') { 8 } else { 10 }).ok()
    };
    number(&difference.parent).zip(number(&difference.child))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(fields: &[(&str, &str)]) -> Observation {
        fields.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn differences_are_separated_from_tolerated_ones() {
        let parent = observation(&[("7/status/SigBlk", "1"), ("7/status/FDSize", "64"), ("7/comm", "a")]);
        let child = observation(&[("7/status/SigBlk", "2"), ("7/status/FDSize", "128"), ("7/fd/3/link", "x")]);
        let report = compare(&parent, &child);
        let fields: Vec<&str> = report.differences.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(fields, ["7/comm", "7/status/SigBlk", "7/fd/3/link"]);
        assert_eq!(report.tolerated.len(), 1);
        assert_eq!(report.fields, 4);
    }

    #[test]
    fn a_standard_stream_may_differ_at_any_descriptor_number() {
        let parent =
            observation(&[("7/fd/10/link", "pipe of 7 fd/10"), ("7/fd/10/info/pos", "0"), ("7/fd/1/info/pos", "0")]);
        let child = observation(&[
            ("7/fd/10/link", "/run/children/n.c1/stdout"),
            ("7/fd/10/info/pos", "9"),
            ("7/fd/1/info/pos", "9"),
        ]);
        let report = compare(&parent, &child);
        let fields: Vec<&str> = report.differences.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!((fields, report.tolerated.len()), (vec!["7/fd/1/info/pos"], 2));
    }

    #[test]
    fn a_copy_of_a_mapped_file_that_has_another_name_is_a_difference() {
        let of = |file: &str, has_name: &str| {
            observation(&[("7/memory/file/1000-2000", file), ("7/memory/has name/1000-2000", has_name)])
        };
        let fields_that_differ = |parent: &str| {
            compare(&of(parent, "true at 0"), &of("shared /memfd:a (deleted) at 0", "false at 0")).differences.len()
        };
        assert_eq!(fields_that_differ("shared /dev/shm/sem.x (deleted) at 0"), 1);
        assert_eq!(fields_that_differ("shared /private/file at 0"), 0);
    }

    #[test]
    fn only_the_address_of_another_network_becomes_a_loopback_address() {
        let fields_that_differ = |parent: &str, child: &str| {
            let of = |address: &str| observation(&[("7/fd/3/peer address", address)]);
            compare(&of(parent), &of(child)).differences.len()
        };
        let [network, loopback, another] = ["0200999ec0000202", "0200ee497f000001", "0200ee487f000001"];
        assert_eq!(fields_that_differ(network, loopback), 0);
        assert_eq!(fields_that_differ(another, loopback), 1);
        assert_eq!(fields_that_differ(loopback, network), 1);
    }

    #[test]
    fn another_owner_of_a_socket_or_pipe_is_a_difference() {
        for (field, parent, child) in [
            ("7/fd/3/stat/owner", "0:0", "1000:1000"),
            ("7/fd/3/stat/owner", "1000:1000", "0:0"),
            ("7/fd/3/peer user and group", "0:0", "1000:1000"),
        ] {
            let report = compare(&observation(&[(field, parent)]), &observation(&[(field, child)]));
            assert_eq!(report.differences.len(), 1, "{field}");
        }
    }

    #[test]
    fn a_tolerance_may_depend_on_the_kind_of_descriptor() {
        let fields_that_differ = |domain: &str, queued: &str| -> usize {
            let of = |queued: &str| {
                observation(&[("7/fd/3/option/SOL_SOCKET/SO_DOMAIN", domain), ("7/fd/3/ioctl/SIOCOUTQ", queued)])
            };
            compare(&of("768"), &of(queued)).differences.len()
        };
        assert_eq!(fields_that_differ("1", "1536"), 0);
        assert_eq!(fields_that_differ("1", "0"), 1);
        assert_eq!(fields_that_differ("2", "1536"), 1);
        let sizes_that_differ = |listens: &str| -> usize {
            let of = |bytes: &str| {
                observation(&[
                    ("7/fd/3/option/SOL_SOCKET/SO_ACCEPTCONN", listens),
                    ("7/fd/3/option/SOL_TCP/TCP_MAXSEG", bytes),
                ])
            };
            compare(&of("32768"), &of("32741")).differences.len()
        };
        assert_eq!((sizes_that_differ("0"), sizes_that_differ("1")), (0, 1));
    }

    #[test]
    fn a_pipe_without_a_reader_in_the_child_may_be_empty() {
        let fields_that_differ = |flags_of_other: &str| -> usize {
            let of = |bytes: &str| {
                observation(&[
                    ("7/fd/3/link", "pipe of 7 fd/3"),
                    ("7/fd/3/fcntl/F_GETFL", flags_of_other),
                    ("7/fd/4/link", "pipe of 7 fd/3"),
                    ("7/fd/4/fcntl/F_GETFL", "2049"),
                    ("7/fd/4/ioctl/FIONREAD", bytes),
                ])
            };
            compare(&of("70"), &of("0")).differences.len()
        };
        assert_eq!((fields_that_differ("1"), fields_that_differ("0")), (0, 1));
    }

    #[test]
    fn seccomp_filters_may_be_missing_only_before_the_first_step() {
        let parent = observation(&[("7/thread/7/signal mask", "0"), ("7/status/Seccomp", "2")]);
        let fields_that_differ = |mask: &str| -> Vec<String> {
            let child = observation(&[("7/thread/7/signal mask", mask), ("7/status/Seccomp", "0")]);
            compare(&parent, &child).differences.into_iter().map(|difference| difference.field).collect()
        };
        assert!(fields_that_differ(RESTORER_MASK).is_empty());
        assert_eq!(fields_that_differ("0"), ["7/status/Seccomp"]);
    }

    #[test]
    fn a_tolerance_may_depend_on_the_values() {
        let of = |parent: &str, child: &str| Difference {
            field: "7/x".to_owned(),
            parent: Some(parent.to_owned()),
            child: Some(child.to_owned()),
        };
        let policy = TolerancePolicy::ChangesTo { parent: "pipe*", child: "*/stdout" };
        assert!(permits_values(policy, &of("pipe of 1", "/run/stdout")));
        assert!(!permits_values(policy, &of("pipe of 1", "/run/stderr")));
        assert!(permits_values(TolerancePolicy::WithinDistance(5), &of("10", "15")));
        assert!(!permits_values(TolerancePolicy::WithinDistance(5), &of("10", "16")));
        assert!(permits_values(TolerancePolicy::ExtraBit(0o100_000), &of("2", "32770")));
        assert!(permits_values(TolerancePolicy::ExtraBit(0o100_000), &of("02000002", "02100002")));
        assert!(!permits_values(TolerancePolicy::ExtraBit(0o100_000), &of("02100002", "02000002")));
        assert!(!permits_values(TolerancePolicy::ExtraBit(0o100_000), &of("2", "32771")));
    }
}
