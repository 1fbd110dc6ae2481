//! Tests of the validation of plans.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::error::PlanError;
use super::validation::{PlanOverrides, validate};
use super::{BenchPlan, StepMachines};

const INVENTORY: &str = "
[groups]
clients = ['n2', 'n3']
[[hosts]]
name = 'n1'
[[hosts]]
name = 'n2'
[[hosts]]
name = 'n3'
";

/// Validates a plan next to an inventory of three hosts.
fn validate_with(text: &str, exclude: &[&str]) -> Result<BenchPlan, PlanError> {
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("HOSTS.toml"), INVENTORY).unwrap();
    let exclude = exclude.iter().map(|name| (*name).to_owned()).collect();
    let overrides = PlanOverrides { exclude, ..PlanOverrides::default() };
    validate(&directory.path().join("plan.toml"), text, &overrides)
}

/// A plan with an inventory.
fn plan(steps: &str) -> String {
    format!("inventory = 'HOSTS.toml'\n{steps}")
}

fn hosts_of(plan: &BenchPlan, step: usize) -> Vec<String> {
    match &plan.steps[step].machines {
        StepMachines::Hosts(hosts) => hosts.iter().map(ToString::to_string).collect(),
        StepMachines::Coordinator => Vec::new(),
    }
}

#[test]
fn a_plan_has_all_combinations_of_its_parameters() {
    let text =
        "[sweep]\nmode = ['a', 'b']\nthreads = [1, 2.5]\n[[steps]]\nname = 's'\ncommand = ['x', '{mode}', '{threads}']";
    let plan = validate_with(text, &[]).unwrap();
    let rounds: Vec<String> =
        plan.rounds().iter().map(|values| format!("{}{}", values["mode"], values["threads"])).collect();
    assert_eq!(rounds, ["a1", "a2.5", "b1", "b2.5"]);
    assert_eq!(plan.steps[0].words[1].render(&plan.rounds()[2]), "b");
    assert_eq!(validate_with("[[steps]]\nname = 's'\ncommand = ['x']", &[]).unwrap().rounds().len(), 1);
}

#[test]
fn steps_follow_each_other_unless_they_name_others() {
    let steps = "
        [[steps]]
        name = 'build'
        once = true
        command = ['x']
        [[steps]]
        name = 'a'
        hosts = ['n1']
        command = ['x']
        [[steps]]
        name = 'b'
        hosts = ['clients']
        command = ['x']
        after = []
        [[steps]]
        name = 'c'
        command = ['x', '{address.n1}']
        after = ['a', 'b']";
    let valid = validate_with(&plan(steps), &["n3"]).unwrap();
    let after: Vec<&[usize]> = valid.steps.iter().map(|step| &step.after[..]).collect();
    assert_eq!(after, [&[][..], &[0], &[], &[1, 2]]);
    assert_eq!([1, 2, 3].map(|step| hosts_of(&valid, step)), [vec!["n1"], vec!["n2"], vec![]]);
    assert_eq!(valid.hosts().len(), 2);
}

#[test]
fn errors_of_a_plan_have_a_position_and_a_cause() {
    let step = |more: &str| format!("[[steps]]\nname = 's'\n{more}");
    for (text, position, cause) in [
        (String::new(), "1:1", "no steps"),
        ("x = 1".to_owned(), "1:1", "unknown field"),
        (step("command = ['x']\nwhere = 'n1'"), "4:1", "unknown field"),
        (step("command = 'x'"), "3:11", "invalid type"),
        (step(""), "2:8", "either `command` or `experiment`"),
        (step("command = []"), "2:8", "no words"),
        (step("command = ['x']\nhosts = ['n1']"), "4:10", "has no `inventory`"),
        (plan(&step("command = ['x']\nhosts = ['n9']")), "5:10", "no host or group `n9`"),
        (step("command = ['{x}']"), "3:12", "no variable `{x}`"),
        (step("command = ['{host}']"), "3:12", "no variable `{host}`"),
        (step("command = ['{']"), "3:12", "brace"),
        (step("command = ['x']\nafter = ['t']"), "4:10", "no step `t`"),
        (step("command = ['x']\nafter = ['s']"), "2:8", "wait for each other: s"),
        (step("command = ['x']\n[[steps]]\nname = 's'\ncommand = ['x']"), "5:8", "a second step `s`"),
        (step("command = ['x']\nready = { tty = 1 }"), "4:11", "unknown variant"),
        (step("command = ['x']\ntimeout_s = 0"), "4:13", "nonzero"),
        (step("command = ['x']\nenvironment = { A-B = 'x' }"), "4:17", "letters, digits and _"),
        (step("command = ['x']\none_by_one = true\nready = { port = 1 }"), "5:9", "at once"),
        (step("command = ['x']\n[[cleanup]]\nname = 'c'\nafter = []\ncommand = ['x']"), "5:8", "no meaning"),
        (
            plan(&format!("[[sync]]\nfrom = '.'\nto = '/opt'\nhosts = ['all']\n{}", step("command = ['x']"))),
            "4:6",
            "two parts",
        ),
        (step("experiment = ['x']\nhosts = ['n1']"), "4:10", "has no `inventory`"),
        (
            plan(&step("experiment = ['rpc', '--inventory', 'x']\nhosts = ['n1']")),
            "4:15",
            "'--inventory <HOSTS.toml>' cannot be used multiple times",
        ),
        ("[sweep]\nplan = [1]\n[[steps]]\nname = 's'\ncommand = ['x']".to_owned(), "2:1", "cannot be a parameter"),
        ("[sweep]\nhost = [1]\n[[steps]]\nname = 's'\ncommand = ['x']".to_owned(), "2:1", "cannot be a parameter"),
        ("[sweep]\nt = []\n[[steps]]\nname = 's'\ncommand = ['x']".to_owned(), "2:1", "no values"),
        (format!("[sweep]\nt = [1]\n{}", step("once = true\ncommand = ['{t}']")), "6:12", "runs once"),
        (
            format!("[sweep]\nt = [1]\n[[cleanup]]\nname = 'c'\ncommand = ['{{t}}']\n{}", step("command = ['x']")),
            "5:12",
            "runs once",
        ),
        (
            plan(&format!("[[sync]]\nfrom = 'none'\nto = '/opt/x'\nhosts = ['all']\n{}", step("command = ['x']"))),
            "3:8",
            "there is no",
        ),
        (
            plan(&format!("[[sync]]\nfrom = '.'\nto = 'x'\nhosts = ['all']\n{}", step("command = ['x']"))),
            "4:6",
            "absolute path",
        ),
    ] {
        let error = validate_with(&text, &[]).expect_err(&text).to_string();
        assert!(error.contains(&format!("plan.toml:{position}: ")) && error.contains(cause), "{text}\n{error}");
    }
    let unknown = validate_with(&plan(&step("command = ['x']\nhosts = ['n1']")), &["n9"]).unwrap_err().to_string();
    assert!(unknown.contains("plan.toml:5:10") && unknown.contains("no host or group `n9`"), "{unknown}");
}

#[test]
fn a_step_without_hosts_after_exclusions_is_skipped() {
    let steps = "[[steps]]\nname = 's'\ncommand = ['x']\nhosts = ['n1']\n[[steps]]\nname = 't'\ncommand = ['x']\nhosts = ['all']";
    let valid = validate_with(&plan(steps), &["n1"]).unwrap();
    assert_eq!([0, 1].map(|step| valid.steps[step].is_skipped()), [true, false]);
    assert_eq!(
        (hosts_of(&valid, 0).len(), hosts_of(&valid, 1), valid.hosts().len()),
        (0, vec!["n2".to_owned(), "n3".to_owned()], 2)
    );
}

#[test]
fn an_experiment_runs_on_the_hosts_of_its_step() {
    let steps = "[[steps]]\nname = 's'\nexperiment = ['rpc', '--samples', '{plan}/x']\nhosts = ['n1', 'clients']";
    let valid = validate_with(&plan(steps), &["n2"]).unwrap();
    let values = [("plan".to_owned(), valid.directory.clone())].into();
    let words: Vec<String> = valid.steps[0].words.iter().map(|word| word.render(&values)).collect();
    let directory = Path::new(&valid.directory);
    assert!(directory.is_absolute());
    let expected = [
        "rpc",
        "--samples",
        &format!("{}/x", valid.directory),
        "--inventory",
        &format!("{}/HOSTS.toml", valid.directory),
        "--hosts",
        "n1,n3",
    ];
    assert_eq!(words, expected);
    assert_eq!((hosts_of(&valid, 0).len(), valid.hosts().len()), (0, 2), "the plan locks the hosts");
    assert!(validate_with(&plan(steps), &["all"]).unwrap().steps[0].is_skipped());
}

#[test]
fn options_set_the_values_of_parameters() {
    let text = "[sweep]\nmode = ['a']\nthreads = [1, 4]\n[[steps]]\nname = 's'\ncommand = ['x', '{mode}']";
    let validate = |set: &[(&str, &str)]| {
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        validate(Path::new("plan.toml"), text, &PlanOverrides { set, ..PlanOverrides::default() })
    };
    let rounds = validate(&[("threads", "2"), ("mode", "b,c"), ("threads", "3")]).unwrap().rounds();
    let values: Vec<_> = rounds.iter().map(|round| [&round["mode"], &round["threads"]]).collect();
    assert_eq!(values, [["b,c", "2"], ["b,c", "3"]]);
    let unknown = validate(&[("size", "1")]).unwrap_err().to_string();
    assert!(unknown.contains("--set size") && unknown.contains("it has mode, threads"), "{unknown}");
}

#[test]
fn targets_of_copies_are_checked() {
    let target = |to: &str| {
        let steps = "[[steps]]\nname = 's'\ncommand = ['x']";
        validate_with(&plan(&format!("[[sync]]\nfrom = '.'\nto = \"{to}\"\nhosts = ['all']\n{steps}")), &[])
    };
    for to in ["/opt/q/../../root", "/opt/..", "/opt/./x", "/opt/x/.", "/opt//", "/opt/a\\u0000b"] {
        let error = target(to).expect_err(to).to_string();
        assert!(error.contains("plan.toml:4:6: "), "{to}: {error}");
    }
    assert_eq!(target("/opt//..x/y.../").unwrap().sync[0].to, "/opt/..x/y...");
}

#[test]
fn experiments_are_parsed_with_the_values_of_each_round() {
    let experiment = |words: &str| {
        let text = format!("[sweep]\nmib = [1, 'x']\nthreads = [1, 4]\n[[steps]]\nname = 's'\nexperiment = [{words}]");
        validate_with(&text, &[])
    };
    for (words, column, cause) in [
        ("'frok'", 15, "unrecognized subcommand 'frok'"),
        ("'fork', '--mibb', '3'", 23, "unexpected argument '--mibb'"),
        ("'fork', '--mib', '{mib}'", 32, "invalid value 'x' for '--mib"),
        ("'fork', '--json'", 23, "'--json' cannot be used multiple times"),
        ("'run', 'plan.toml'", 15, "'run' measures nothing"),
        ("'report', 'results'", 15, "'report' measures nothing"),
    ] {
        let error = experiment(words).expect_err(words).to_string();
        assert!(error.contains(&format!("plan.toml:6:{column}: ")) && error.contains(cause), "{words}\n{error}");
    }
    experiment("'connect', '--threads', '{threads}'").unwrap();
    experiment("'rpc', '--inventory', 'HOSTS.toml', '--hosts', 'clients'").unwrap();
}

#[test]
fn errors_of_values_have_words_of_users() {
    let step = |more: &str| format!("[[steps]]\nname = 's'\ncommand = ['x']\n{more}");
    for (text, position, cause) in [
        (format!("[sweep]\nn = [1, 'x', [2]]\n{}", step("")), "2:", "a value of a parameter is a text or a number"),
        (step("ready = { port = 1, file = '/x' }"), "4:", "exactly one of `port`, `line` and `file`"),
        (step("timeout_s = 0"), "4:13", "expected a nonzero whole number"),
        (step("ready = { port = 0 }"), "4:", "expected a nonzero whole number up to 65535"),
        (step("retries = -1"), "4:11", "expected a whole number from 0 to 4294967295"),
        (step("hosts = 'n1'"), "4:9", "expected a list"),
        (step("").replace("'x'", "\"a\\u0000b\""), "3:12", "contains NUL"),
        (step("directory = \"/\\u0000\""), "4:13", "contains NUL"),
        (step("ready = { line = \"\\u0000\" }"), "4:9", "contains NUL"),
    ] {
        let error = validate_with(&text, &[]).expect_err(&text).to_string();
        assert!(error.contains(&format!("plan.toml:{position}")) && error.contains(cause), "{text}\n{error}");
    }
}

#[test]
fn a_plan_that_cannot_be_read_is_named() {
    let error = BenchPlan::read(Path::new("/nowhere/plan.toml"), &PlanOverrides::default()).unwrap_err().to_string();
    assert!(error.contains("/nowhere/plan.toml"), "{error}");
}
