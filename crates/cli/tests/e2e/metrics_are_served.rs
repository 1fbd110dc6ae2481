//! `farfork node --metrics`: Prometheus scrapes the counters and gauges of a node. A fork changes them, and each has a
//! help text. Without the option, the node does not listen.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Cluster, Parent, Program, Seed, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::alone("a_fork_changes_the_counters", a_fork_changes_counters),
    Test::alone("only_to_valid_http_requests", valid_http),
    Test::shared("only_with_the_metrics_option", only_with_option),
];

/// Port of the metrics. Each node listens in its own network namespace, so clusters do not conflict.
pub(crate) const PORT: &str = "9470";

/// The guide that documents each metric.
const GUIDE: &str = include_str!("../../../../docs/guide/observing.md");

/// Time limit of a scrape: far longer than a pager needs to answer for a few children.
const SCRAPE_LIMIT: Duration = Duration::from_secs(60);

fn a_fork_changes_counters() {
    let cluster = Cluster::start_with(2, &["--metrics", PORT]);
    let before = [scrape(&cluster, 0), scrape(&cluster, 1)];
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    seed.fork_and_check(&parent, 7, &["--to", cluster.name(1)]);
    let child = seed.fork_idle(1, &["--to", cluster.name(1)]).remove(0);
    // A process that prepare refuses on every machine.
    let refused = Parent::start(Program::Situation("refused"), &["socket"]);
    cluster.first().run_failing(&["prepare", &refused.pid_text()]).require_mentions(&["socket"]);
    let after = [scrape(&cluster, 0), scrape(&cluster, 1)];

    let rose = |node: usize, metric: &str| after[node].value(metric) - before[node].value(metric);
    for (node, metric, by) in [
        (0, "farfork_prepare_seconds_count", 1.0),
        (0, "farfork_pause_seconds_count", 1.0),
        (0, "farfork_answer_seconds_count{request=\"fork\"}", 2.0),
        (0, "farfork_resume_seconds_count", 0.0),
        (0, "farfork_seeds", 1.0),
        (0, "farfork_templates", 1.0),
        (1, "farfork_resume_seconds_count", 2.0),
        (1, "farfork_children{state=\"running\"}", 1.0),
        (1, "farfork_children{state=\"ended\"}", 1.0),
        (1, "farfork_seeds", 0.0),
    ] {
        assert!((rose(node, metric) - by).abs() < 1e-9, "{metric} of node {node} rose by {}", rose(node, metric));
    }
    let failures: f64 = after[0].all("farfork_failures_total{work=\"prepare\"").sum();
    assert!(failures >= 1.0, "the refused prepare is not counted as a failure");
    assert!(rose(1, "farfork_fetched_bytes_total{from=\"network\"}") >= 4096.0, "the child has fetched no page");
    assert!(rose(1, "farfork_page_faults_total{kind=\"missing\"}") >= 1.0);
    assert!(rose(0, "farfork_seed_memory_bytes") > 0.0 && rose(1, "farfork_resume_seconds_sum") > 0.0);
    assert!((after[0].value("farfork_nodes{state=\"alive\"}") - 2.0).abs() < 1e-9);

    // The counters of a child remain after the child is removed.
    cluster.first().json(&["kill", "--signal", "KILL", &child.id]);
    cluster.first().json_ignoring_status(&["wait", &child.id]);
    let ended = scrape(&cluster, 1);
    let removed = cluster.first().json(&["rm", "--ended"]);
    let lists_child = |said: &serde_json::Value| {
        said["children"]
            .as_array()
            .is_some_and(|all| all.iter().any(|listed| listed["child"] == *child.id && listed["error"].is_null()))
    };
    assert!(lists_child(&removed), "{removed}");
    assert_eq!(cluster.first().json(&["ps"])["children"], serde_json::json!([]));
    let forgotten = scrape(&cluster, 1);
    for counter in ["farfork_page_faults_total{kind=\"missing\"}", "farfork_fetched_bytes_total{from=\"network\"}"] {
        assert!(ended.value(counter) >= after[1].value(counter), "{counter} never falls");
        assert!(forgotten.value(counter) >= ended.value(counter), "{counter} never falls");
    }
    drop(seed);
    assert_eq!(cluster.stop(), [""; 0]);
}

fn valid_http() {
    let cluster = Cluster::start_with(1, &["--metrics", PORT]);
    for (request, status) in [
        ("GET /metrics HTTP/1.1", "200"),
        ("HEAD /metrics HTTP/1.1", "200"),
        ("GET / HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("what is this", "400"),
    ] {
        let answer = ask(&cluster, 0, request).expect("the node listens");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let metrics = scrape(&cluster, 0);
    assert!(metrics.head.contains("content-type: application/openmetrics-text"), "{}", metrics.head);
    for (family, help) in &metrics.helps {
        assert!(help.len() > 8, "{family} has no help text: `{help}`");
    }
    let described = |name: &str| metrics.helps.keys().any(|family| name.starts_with(family.as_str()));
    for name in metrics.values.keys() {
        assert!(name.starts_with("farfork_") && described(name), "{name} has no help text");
    }
    for family in metrics.helps.keys() {
        assert!(GUIDE.contains(&format!("`{family}")), "the guide does not document {family}");
    }
    assert!(
        ask(&cluster, 0, "GET /metrics HTTP/1.1").is_some(),
        "the node does not answer after input that is not HTTP"
    );
    assert_eq!(cluster.stop(), [""; 0]);
}

fn only_with_option(cluster: &Cluster) {
    assert_eq!(ask(cluster, 0, "GET /metrics HTTP/1.1"), None, "a process listens although --metrics is not set");
}

/// The scraped metrics of a node.
struct Metrics {
    head: String,
    /// Help texts by family.
    helps: BTreeMap<String, String>,
    /// Values by name and labels.
    values: BTreeMap<String, f64>,
}

impl Metrics {
    fn value(&self, metric: &str) -> f64 {
        self.values.get(metric).copied().unwrap_or_else(|| {
            panic!("no {metric} in {:#?}", self.values.keys().filter(|name| !name.contains("_bucket")))
        })
    }

    fn all(&self, prefix: &str) -> impl Iterator<Item = f64> {
        self.values.iter().filter(move |(name, _)| name.starts_with(prefix)).map(|(_, value)| *value)
    }
}

fn scrape(cluster: &Cluster, node: usize) -> Metrics {
    let answer = ask(cluster, node, "GET /metrics HTTP/1.1").expect("the node listens");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {answer}"));
    assert!(body.ends_with("# EOF\n"), "the text is not complete: {body}");
    let (mut helps, mut values) = (BTreeMap::new(), BTreeMap::new());
    for line in body.lines() {
        if let Some((family, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            helps.insert(family.to_owned(), help.to_owned());
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
            values.insert(name.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")));
        }
    }
    Metrics { head: head.to_lowercase(), helps, values }
}

/// Sends one request from within a node's network namespace. Returns the answer; `None` if no process listens.
pub(crate) fn ask(cluster: &Cluster, node: usize, request: &str) -> Option<String> {
    // Does not use printf of the shell, which writes line by line: a server that refuses the first line closes the
    // connection before the second.
    let script =
        "exec 3<>/dev/tcp/127.0.0.1/$0 || exit 9; env printf '%s\\r\\nHost: x\\r\\n\\r\\n' \"$1\" >&3; cat <&3";
    let child = Command::new("ip")
        .args(["netns", "exec", &cluster.netns(node), "bash", "-c", script, PORT, request])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip can be started");
    let ended = wait::wait_with_output(child, "a scrape", SCRAPE_LIMIT);
    match ended.status.code() {
        Some(0) => Some(ended.stdout),
        Some(9) => None,
        _ => panic!("{request}: {}{}", ended.status, ended.stderr),
    }
}
