//! Inventories that are valid, and the position of each error.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{HostSelection, Inventory, InventoryError, TrafficEndpoint};

const FILE: &str = "/nowhere/hosts.toml";

const THREE_HOSTS: &str = r#"
[defaults]
user = "root"
jump = "gateway"

[groups]
servers = ["n1"]
both = ["servers", "n2"]

[[hosts]]
name = "gateway"
address = "gw.example.org"
port = 2222

[[hosts]]
name = "n1"
address = "10.0.0.1"
traffic = ["10.1.0.1", "eth1"]
cpus = "0-3,8"
numa_node = 1

[[hosts]]
name = "n2"
user = "tester"
"#;

fn parse(text: &str) -> Result<Inventory, InventoryError> {
    Inventory::parse(Path::new(FILE), text)
}

/// Returns line, column and cause of the error in `text`.
#[track_caller]
fn error_in(text: &str) -> (usize, usize, String) {
    match parse(text) {
        Err(InventoryError::Content { position, cause }) => (position.line, position.column, cause),
        other => panic!("no error with a position: {other:?}"),
    }
}

fn names(selected: &[&super::InventoryHost]) -> Vec<String> {
    selected.iter().map(|host| host.name.to_string()).collect()
}

#[test]
fn hosts_have_their_own_values_or_the_defaults() {
    let inventory = parse(THREE_HOSTS).unwrap();
    let [gateway, n1, n2] = inventory.hosts() else { panic!("three hosts") };
    assert_eq!((gateway.address.as_str(), gateway.port, gateway.jump.as_ref()), ("gw.example.org", Some(2222), None));
    assert_eq!(n1.jump.as_ref(), Some(&gateway.name), "the default applies to all hosts but the jump host");
    let endpoints = [TrafficEndpoint::Address([10, 1, 0, 1].into()), TrafficEndpoint::Interface("eth1".to_owned())];
    assert_eq!((n1.traffic.as_slice(), n1.numa_node, n1.cpus.as_deref()), (&endpoints[..], Some(1), Some("0-3,8")));
    assert_eq!((n2.address.as_str(), n2.user.as_deref(), n1.user.as_deref()), ("n2", Some("tester"), Some("root")));
    assert_eq!(inventory.authority().name, gateway.name, "the first host by default");
    let install = inventory.install();
    assert_eq!(install.program("farfork"), PathBuf::from("/usr/local/bin/farfork"));
    assert_eq!((install.port, inventory.connect_timeout()), (7400, Duration::from_secs(20)));
}

#[test]
fn hosts_are_selected_by_groups_and_names() {
    let inventory = parse(THREE_HOSTS).unwrap();
    let select = |hosts: &[&str], exclude: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        inventory.select(&HostSelection { hosts: owned(hosts), exclude: owned(exclude) }).map(|found| names(&found))
    };
    assert_eq!(select(&[], &[]).unwrap(), ["gateway", "n1", "n2"]);
    assert_eq!(select(&["both"], &[]).unwrap(), ["n1", "n2"]);
    assert_eq!(select(&["n2", "servers"], &["n1"]).unwrap(), ["n2"]);
    assert_eq!(select(&["all"], &["both"]).unwrap(), ["gateway"]);
    let unknown = select(&["clients"], &[]).unwrap_err().to_string();
    assert!(unknown.contains("no host or group `clients`; it has gateway, n1, n2, all, both, servers"), "{unknown}");
    assert!(matches!(select(&["both"], &["all"]), Err(InventoryError::EmptySelection { .. })));
}

#[test]
fn unknown_keys_have_a_position() {
    let (line, column, cause) = error_in("[[hosts]]\nname = \"n1\"\nadress = \"x\"\n");
    assert_eq!((line, column), (3, 1), "{cause}");
    assert!(cause.contains("unknown field `adress`"), "{cause}");
    assert_eq!(error_in("[[hosts]]\nname = \n").0, 2, "a syntax error");
    assert_eq!(error_in("[[hosts]]\naddress = \"x\"\n").0, 1, "a missing key");
    assert!(error_in("").2.contains("no hosts"));
}

#[test]
fn unknown_names_have_a_position() {
    let with = |text: &str| format!("{text}\n[[hosts]]\nname = \"n1\"\n");
    let group = error_in(&with("[groups]\na = [\"n1\", \"n2\"]"));
    assert_eq!(group, (2, 12, "no host or group `n2`".to_owned()));
    assert_eq!(error_in(&with("authority = \"n3\"")), (1, 13, "no host `n3`".to_owned()));
    let jump = error_in("[[hosts]]\nname = \"n1\"\njump = \"n3\"\n");
    assert_eq!(jump, (3, 8, "no host `n3`".to_owned()));
    let twice = error_in("[[hosts]]\nname = \"n1\"\n[[hosts]]\nname = \"n1\"\n");
    assert_eq!(twice, (4, 8, "a second host `n1`".to_owned()));
    assert_eq!(error_in(&with("[groups]\nn1 = []")).0, 2, "a group with the name of a host");
    assert_eq!(error_in(&with("[groups]\nall = []")).0, 2, "the group of all hosts");
}

#[test]
fn a_host_has_one_name() {
    let with =
        |more: &str| format!("[[hosts]]\nname = \"n1\"\naddress = \"10.0.0.1\"\n[[hosts]]\nname = \"n2\"\n{more}\n");
    let twice = error_in(&with("port = 22\naddress = \"10.0.0.1\""));
    assert_eq!(twice, (7, 11, "`n2` has the address and the port of the host `n1`".to_owned()));
    parse(&with("address = \"10.0.0.1\"\nport = 2222")).expect("another port is another host");
    parse(&with("address = \"10.0.0.1\"\njump = \"n1\"")).expect("another network");
}

#[test]
fn cycles_have_a_position() {
    let jumps = "[[hosts]]\nname = \"a\"\njump = \"b\"\n[[hosts]]\nname = \"b\"\njump = \"a\"\n";
    assert_eq!(error_in(jumps), (3, 8, "the jump hosts are a cycle: a → b → a".to_owned()));
    assert_eq!(error_in("[[hosts]]\nname = \"a\"\njump = \"a\"\n").0, 3);
    let groups = "[groups]\nx = [\"y\"]\ny = [\"n1\", \"x\"]\n[[hosts]]\nname = \"n1\"\n";
    assert_eq!(error_in(groups), (3, 12, "the group `x` contains itself: x → y → x".to_owned()));
}

#[test]
fn values_that_ssh_would_misread_are_refused() {
    for name in ["-oProxyCommand=id", "a b", "n1\\nUser", "", "n1;id", "*", "all"] {
        assert_eq!(error_in(&format!("[[hosts]]\nname = \"{name}\"\n")).0, 2, "{name}");
    }
    for (key, values) in [
        ("address", &["-oProxyCommand=id", "a b", "%h", "x\\ny", "", "user@n1"][..]),
        ("user", &["-lroot", "a b", "", "x\\ny", "%r"]),
        ("key", &["/nowhere/key", "a\\\"b", "${HOME}/key", "a\\nb"]),
        ("traffic", &[]),
        ("cpus", &["0-", "x", "", "9999999"]),
    ] {
        for value in values {
            let (line, column, _) = error_in(&format!("[[hosts]]\nname = \"n1\"\n{key} = \"{value}\"\n"));
            assert_eq!((line, column), (3, key.len() + 4), "{key} = {value}");
        }
    }
    for endpoint in ["-x", "a/b", "a b", "", "an-interface-name-that-is-too-long"] {
        assert_eq!(error_in(&format!("[[hosts]]\nname = \"n1\"\ntraffic = [\"{endpoint}\"]\n")).1, 12, "{endpoint}");
    }
}

#[test]
fn paths_of_an_installation_need_no_quotes() {
    let with = |text: &str| format!("[install]\n{text}\n[[hosts]]\nname = \"n1\"\n");
    for path in ["relative", "/", "/a b", "/a/../b", "/x\\ny", "/%n", "/a;b", ""] {
        assert_eq!(error_in(&with(&format!("prefix = \"{path}\""))).0, 2, "{path}");
    }
    for path in ["run_dir = \"/etc\"", "log = \"/etc/motd\"", "log = \"/var/log/farfork/passwd\""] {
        assert_eq!(error_in(&with(path)).0, 2, "undeploy would remove it: {path}");
    }
    assert_eq!(
        error_in(&with("arguments = [\"--cache\", \"1 GiB\"]")),
        (2, 25, "`1 GiB` is not an argument of letters, digits and ._-+/:,=?@[]".to_owned())
    );
    for argument in ["--volumes", "--volumes=/srv", "--run-dir"] {
        let (line, column, cause) = error_in(&with(&format!("arguments = [\"{argument}\"]")));
        assert!((line, column) == (2, 14) && cause.contains("is reserved"), "{cause}");
    }
    assert_eq!(error_in(&with("port = 65535")).0, 2);
    assert_eq!(error_in(&with("port = 0")).0, 2);
    let inventory = parse(&with("prefix = \"/opt/farfork-1.0\"\nport = 7500")).unwrap();
    assert_eq!(inventory.install().program("farfork-bench"), PathBuf::from("/opt/farfork-1.0/bin/farfork-bench"));
}
