//! `--profile` reports the time of a prepare or fork as nested phases, and the cost of the children's memory.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::harness::seed::EXIT_VERIFIED;
use crate::harness::{Cluster, Parent, Program, Seed, scratch, wait};
use crate::test::Test;

pub(crate) const TESTS: &[Test] = &[
    Test::shared("of_a_prepare", of_a_prepare),
    Test::shared("of_a_fork_on_another_node", of_a_fork),
    Test::shared("of_several_children", of_several),
    Test::shared("only_with_the_profile_option", only_with_profile),
];

/// Longest wait until a child has touched its executable.
const FILES_LIMIT: Duration = Duration::from_secs(60);

/// The JSON keys of a phase. They are a stable interface for scripts.
const KEYS: [&str; 5] = ["depth", "duration_us", "name", "node", "start_us"];

fn of_a_prepare(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare_with(cluster.first(), &parent, &["--profile"]);
    let phases = Phases::of(&seed.prepare_output["phases"]);
    phases.check("prepare", cluster.name(0));
    assert!(phases.names().contains("prepare.capture"), "{:?}", phases.names());
    let whole_us = seed.prepare_output["prepare_us"].as_u64().expect("prepare reports its duration");
    let told_us = phases.0[0].duration_us;
    assert!(told_us >= whole_us, "the request took {told_us} µs, but prepare took {whole_us} µs");
}

fn of_a_fork(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let said = cluster.first().json(&["fork", seed.id(), "--to", cluster.name(1), "--detach", "--profile"]);
    let request = Phases::of(&said["phases"]);
    request.check("fork", cluster.name(0));
    assert!(request.names().contains("fork.ask"), "{:?}", request.names());

    let child = &said["children"][0];
    let resume = Phases::of(&child["phases"]);
    resume.check("resume", cluster.name(1));
    for phase in ["resume.source", "descriptor.read", "resume.container", "resume.plan", "resume.child", "child.map"] {
        assert!(resume.names().contains(phase), "no {phase} in {:?}", resume.names());
    }
    let (resume_us, told_us) = (child["resume_us"].as_u64().expect("a time"), resume.0[0].duration_us);
    assert!(told_us >= resume_us, "all phases took {told_us} µs, but the first instruction came after {resume_us} µs");
    let asked_us = request.0[0].duration_us;
    let end_us = resume.0[0].start_us + told_us;
    assert!(end_us <= asked_us, "the child ran after {end_us} µs, but its request ended after {asked_us} µs");

    let id = child["child"].as_str().expect("an id");
    wait::wait_until("the child's file pages are counted, at most all resident pages", FILES_LIMIT, || {
        let said = cluster.first().json(&["inspect", id]);
        let [files, shared, private] =
            ["file_bytes", "shared_bytes", "private_bytes"].map(|key| said["memory"][key].as_u64().unwrap_or(0));
        (1..=shared + private).contains(&files).then_some(())
    });
    cluster.first().run(&["kill", id]);
}

fn of_several(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    let payloads = scratch::file("1\n2\n3\n4");
    let (file, to) = (payloads.path().to_string_lossy(), cluster.names(&[1, 2]));
    let said =
        cluster.first().json_ignoring_status(&["fork", seed.id(), "--to", &to, "--payloads", &file, "--profile"]);
    for (child, line) in said["children"].as_array().expect("fork lists children").iter().zip(1..) {
        assert_eq!(child["line"], line, "{child}");
        assert_eq!(child["exit_code"], EXIT_VERIFIED, "{child}");
        Phases::of(&child["phases"]).check("resume", child["node"].as_str().expect("a node"));
        let count = |key: &str| child["pager"][key].as_u64().unwrap_or_else(|| panic!("{key} of {child}"));
        let answered = ["faults_missing", "faults_late", "faults_zero"].map(count).iter().sum::<u64>();
        assert!((1..=count("faults")).contains(&answered), "the child has no answered fault: {child}");
        assert!(count("round_trips_demand") <= count("round_trips"), "{child}");
        assert_eq!(count("bytes_fetched") % 4096, 0, "not a multiple of the page size: {child}");
        assert!(child["memory"]["remote_bytes"].is_u64() && child["memory"]["private_bytes"].is_null(), "{child}");
    }
    let summary = said["summary"].as_array().expect("a summary");
    assert_eq!((&summary[0]["name"], &summary[0]["children"]), (&"resume".into(), &4.into()));
    let is_ordered = |phase: &Value| phase["median_us"].as_u64() <= phase["max_us"].as_u64();
    assert!(summary.iter().all(is_ordered), "{summary:?}");
}

fn only_with_profile(cluster: &Cluster) {
    let parent = Parent::start(Program::Waits, &["4"]);
    let seed = Seed::prepare(cluster.first(), &parent);
    assert!(seed.prepare_output["phases"].is_null(), "{}", seed.prepare_output);
    let said = cluster.first().json(&["fork", seed.id(), "--detach"]);
    assert!(said["phases"].is_null() && said["children"][0]["phases"].is_null(), "{said}");
    cluster.first().run(&["kill", said["children"][0]["child"].as_str().expect("an id")]);
}

struct Phase {
    name: String,
    node: String,
    depth: u64,
    start_us: u64,
    duration_us: u64,
}

struct Phases(Vec<Phase>);

impl Phases {
    fn of(list: &Value) -> Self {
        let phase = |said: &Value| {
            let keys: Vec<&String> = said.as_object().into_iter().flat_map(|object| object.keys()).collect();
            assert_eq!(keys, KEYS, "the keys of a phase must not change");
            let number = |key: &str| said[key].as_u64().unwrap_or_else(|| panic!("{key} of {said}"));
            let text = |key: &str| said[key].as_str().unwrap_or_else(|| panic!("{key} of {said}")).to_owned();
            Phase {
                name: text("name"),
                node: text("node"),
                depth: number("depth"),
                start_us: number("start_us"),
                duration_us: number("duration_us"),
            }
        };
        Self(list.as_array().unwrap_or_else(|| panic!("no phases: {list}")).iter().map(phase).collect())
    }

    /// Checks the nesting. The first phase is the whole request. Each other phase lies within its parent. If the parts
    /// of a phase are consecutive, they take no longer than the phase.
    fn check(&self, whole: &str, node: &str) {
        let phases = &self.0;
        assert_eq!((phases[0].name.as_str(), phases[0].depth), (whole, 0));
        assert!(phases.len() > 2, "{whole} has parts");
        for (index, phase) in phases.iter().enumerate() {
            let end = |phase: &Phase| phase.start_us + phase.duration_us;
            assert_eq!(phase.node, node, "{}", phase.name);
            let inside = phases[index + 1..].iter().take_while(|part| part.depth > phase.depth);
            let parts: Vec<&Phase> = inside.filter(|part| part.depth == phase.depth + 1).collect();
            for part in &parts {
                let is_within = part.start_us >= phase.start_us && end(part) <= end(phase);
                assert!(is_within, "{} is not within {}", part.name, phase.name);
            }
            let in_turn = parts.windows(2).all(|pair| end(pair[0]) <= pair[1].start_us);
            let sum_us: u64 = parts.iter().map(|part| part.duration_us).sum();
            assert!(
                !in_turn || sum_us <= phase.duration_us,
                "{}: its parts take {sum_us} µs, longer than the phase",
                phase.name
            );
        }
    }

    fn names(&self) -> BTreeSet<&str> {
        self.0.iter().map(|phase| phase.name.as_str()).collect()
    }
}
