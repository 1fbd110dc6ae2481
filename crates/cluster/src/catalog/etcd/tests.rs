//! Tests of `EtcdCatalog` with real servers: `etcd` of Debian's package `etcd-server`, at addresses of the loopback.

use std::fs;
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use tempfile::TempDir;

use super::*;
use crate::catalog::conformance::{self, new_record, node_name, raise_term, volume_name};
use crate::catalog::update_volume;
use crate::local::TestEtcd;

/// The servers are ready after about three seconds, and answer within milliseconds. A machine under load needs longer.
const HANG_LIMIT: Duration = Duration::from_secs(60);

/// An etcd cluster that answers.
struct EtcdServers {
    etcd: TestEtcd,
    _directory: TempDir,
}

impl EtcdServers {
    fn start(count: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let etcd = TestEtcd::start(directory.path(), count, None).expect("`make setup` installs etcd-server");
        let servers = Self { etcd, _directory: directory };
        servers.wait_until_ready();
        servers
    }

    fn wait_until_ready(&self) {
        self.open("/ready").read().unwrap();
    }

    fn location(&self, prefix: &str) -> EtcdLocation {
        self.etcd.location(prefix)
    }

    fn open(&self, prefix: &str) -> EtcdCatalog {
        open_patiently(&self.location(prefix))
    }

    /// Runs etcdctl(1), and returns its output.
    fn run_etcdctl(&self, arguments: &[&str]) -> String {
        let endpoint = format!("--endpoints={}", self.location("/").members[0]);
        let output = Command::new("etcdctl").env("ETCDCTL_API", "3").arg(endpoint).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The index of the leader.
    fn leader(&self) -> usize {
        let is_leader = |member: &String| {
            let endpoint = format!("--endpoints={member}");
            let status =
                Command::new("etcdctl").env("ETCDCTL_API", "3").args([&endpoint, "endpoint", "status"]).output();
            String::from_utf8(status.unwrap().stdout).unwrap().contains("true")
        };
        self.location("/").members.iter().position(is_leader).unwrap()
    }
}

/// Opens a catalog whose requests do not fail because the machine is busy.
fn open_patiently(location: &EtcdLocation) -> EtcdCatalog {
    EtcdCatalog::open_with_limit(location, HANG_LIMIT).unwrap()
}

#[test]
fn etcd_is_a_catalog() {
    let servers = EtcdServers::start(1);
    let stores = std::cell::Cell::new(0);
    conformance::check_all(|| {
        stores.set(stores.get() + 1);
        let location = servers.location(&format!("/store{}", stores.get()));
        move || Box::new(open_patiently(&location))
    });
}

#[test]
fn changes_continue_when_members_die_stop_and_return() {
    let mut servers = EtcdServers::start(3);
    let (catalog, name) = (servers.open("/farfork"), volume_name("data"));
    catalog.write_volume(&name, &new_record()).unwrap();
    raise_term(&catalog, &name);

    let leader = servers.leader();
    servers.etcd.kill(leader).unwrap();
    raise_term(&catalog, &name);
    servers.etcd.restart(leader).unwrap();
    servers.wait_until_ready();

    for index in 0..3 {
        servers.etcd.signal(index, Signal::STOP).unwrap();
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| raise_term(&catalog, &name)));
        servers.etcd.signal(index, Signal::CONT).unwrap();
        changed.unwrap();
    }
    let term = servers.open("/farfork").read().unwrap().volumes[&name].term;
    assert_eq!(term, 5);
}

/// The disk of the leader needs 300 ms for a flush. An attempt of a request lasts 1 s.
#[test]
fn changes_continue_when_the_disk_of_the_leader_is_slow() {
    let servers = EtcdServers::start(3);
    let (catalog, name) = (servers.open("/farfork"), volume_name("data"));
    catalog.write_volume(&name, &new_record()).unwrap();
    let pid = servers.etcd.process_id(servers.leader()).to_string();
    let trace = tempfile::NamedTempFile::new().unwrap();
    let mut slow_disk = Command::new("strace");
    slow_disk.args(["-f", "-qq", "-e", "trace=fsync,fdatasync", "-p", &pid]).arg("-o").arg(trace.path());
    slow_disk.args(["-e", "inject=fsync,fdatasync:delay_exit=300000"]);
    let mut slow_disk = slow_disk.spawn().expect("`make setup` installs strace");
    let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let (deadline, mut raised) = (Instant::now() + HANG_LIMIT, 0);
        while !fs::read_to_string(trace.path()).unwrap().contains("(DELAYED)") {
            assert!(Instant::now() < deadline, "strace delays no flush of process {pid}");
            raise_term(&catalog, &name);
            raised += 1;
        }
        (0..3).for_each(|_| raise_term(&catalog, &name));
        raised + 3
    }));
    slow_disk.kill().unwrap();
    slow_disk.wait().unwrap();
    assert_eq!(servers.open("/farfork").read().unwrap().volumes[&name].term, changed.unwrap());
}

/// A member returns with a clock that is a day ahead, as after the restore of a virtual machine. etcd measures its intervals
/// with CLOCK_MONOTONIC.
#[test]
fn changes_continue_when_the_clock_of_a_member_jumps() {
    const DAY_S: &str = "86400";
    let mut servers = EtcdServers::start(3);
    let (catalog, name) = (servers.open("/farfork"), volume_name("data"));
    catalog.write_volume(&name, &new_record()).unwrap();
    servers.etcd.kill(0).unwrap();
    raise_term(&catalog, &name);
    let wrapper = ["unshare", "--time", "--monotonic", DAY_S, "--boottime", DAY_S, "--fork", "--kill-child", "--"]
        .map(str::to_owned);
    servers.etcd.restart_in(0, &wrapper).unwrap();
    servers.wait_until_ready();
    // From here on, a majority needs the member.
    servers.etcd.kill(1).unwrap();
    raise_term(&catalog, &name);
    assert_eq!(servers.open("/farfork").read().unwrap().volumes[&name].term, 2);
}

#[test]
fn without_a_quorum_nothing_is_read_or_written() {
    let mut servers = EtcdServers::start(3);
    let (catalog, name) = (servers.open("/farfork"), volume_name("data"));
    let revision = catalog.write_volume(&name, &new_record()).unwrap();
    servers.etcd.kill(0).unwrap();
    servers.etcd.kill(1).unwrap();
    let impatient = EtcdCatalog::open(&servers.location("/farfork")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(matches!(impatient.read(), Err(CatalogError::Store { .. }))));
        let written = impatient.write_volume(&name, &VolumeRecord { revision, ..new_record() });
        assert!(matches!(written, Err(CatalogError::Store { .. })));
    });
    servers.etcd.restart(0).unwrap();
    servers.etcd.restart(1).unwrap();
    servers.wait_until_ready();
    assert!(catalog.read().unwrap().volumes.contains_key(&name));
}

#[test]
fn a_compaction_loses_nothing() {
    let servers = EtcdServers::start(1);
    let (catalog, name) = (servers.open("/farfork"), volume_name("data"));
    let revision = catalog.write_volume(&name, &new_record()).unwrap();
    catalog.read().unwrap();
    catalog.wait_for_change();
    servers.run_etcdctl(&["compact", &revision.to_string()]);
    raise_term(&catalog, &name);
    catalog.wait_for_change();
    assert_eq!(catalog.read().unwrap().volumes[&name].term, 1);
}

#[test]
fn a_damaged_value_is_refused_by_its_key_and_others_are_not() {
    let servers = EtcdServers::start(1);
    let catalog = servers.open("/farfork");
    let (data, other) = (volume_name("data"), volume_name("other"));
    catalog.write_volume(&data, &new_record()).unwrap();
    catalog.write_volume(&other, &new_record()).unwrap();
    let put = |value: &str| drop(servers.run_etcdctl(&["put", "/farfork/volumes/data", value]));
    let refusal = |value: &str| {
        put(value);
        let contents = servers.open("/farfork").read().unwrap();
        assert!(contents.volume(&other).unwrap().is_some(), "the other volume is not affected");
        contents.volume(&data).unwrap_err().to_string()
    };
    let error = refusal("{");
    assert!(
        error.contains("key /farfork/volumes/data of etcd://") && error.contains("import-catalog FILE data"),
        "{error}"
    );
    assert_eq!(servers.run_etcdctl(&["get", "--print-value-only", "/farfork/volumes/data"]).trim(), "{");
    let error = refusal(r#"{"format": 2}"#);
    assert!(error.contains("format 2"), "{error}");
    let twins = vec![node_name("n1"); 2];
    for (damaged, reason) in [
        (VolumeRecord { chain: Vec::new(), ..new_record() }, "`chain` is empty"),
        (VolumeRecord { log_bytes: 1 << 62, ..new_record() }, "`log_bytes`"),
        (VolumeRecord { log_bytes: (8 << 20) + 1, ..new_record() }, "`log_bytes`"),
        (VolumeRecord { epoch: u64::MAX, ..new_record() }, "`epoch`"),
        (VolumeRecord { term: u32::MAX, ..new_record() }, "`term`"),
        (VolumeRecord { replicas: twins.clone(), ..new_record() }, "`replicas` is empty, or names a node twice"),
        (VolumeRecord { clients: twins, ..new_record() }, "`clients` names a node twice"),
        (VolumeRecord { chain: vec![node_name("n9")], ..new_record() }, "`chain` names a node that is not"),
        (VolumeRecord { replicas: (0..17).map(|i| node_name(&format!("n{i}"))).collect(), ..new_record() }, "16 nodes"),
    ] {
        let error = refusal(&String::from_utf8(encode(1, &damaged)).unwrap());
        assert!(error.contains(reason), "{error}");
    }
    assert!(update_volume(&servers.open("/farfork"), &data, |_| true).is_err(), "a damaged record is not overwritten");
    put(&String::from_utf8(encode(1, &new_record())).unwrap());
    assert!(servers.open("/farfork").read().unwrap().volume(&data).unwrap().is_some());
}

/// Another cluster's prefix may begin with the own one.
#[test]
fn catalogs_with_different_prefixes_do_not_see_each_other() {
    let servers = EtcdServers::start(1);
    let (one, other) = (servers.open("/farfork"), servers.open("/farfork2"));
    one.write_volume(&volume_name("data"), &new_record()).unwrap();
    assert!(other.read().unwrap().volumes.is_empty());
    let revision = other.write_volume(&volume_name("data"), &VolumeRecord { id: 8, ..new_record() }).unwrap();
    assert_eq!(one.read().unwrap().volumes[&volume_name("data")].id, new_record().id);
    other.remove_volume(&volume_name("data"), revision).unwrap();
    assert!(one.read().unwrap().volumes.contains_key(&volume_name("data")));
}

#[test]
fn a_wrong_or_revoked_password_is_refused() {
    let servers = EtcdServers::start(1);
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "farfork:word"],
        &["role", "add", "farfork"],
        &["role", "grant-permission", "farfork", "--prefix=true", "readwrite", "/farfork/"],
        &["user", "grant-role", "farfork", "farfork"],
        &["auth", "enable"],
    ] {
        servers.run_etcdctl(arguments);
    }
    let credentials = tempfile::tempdir().unwrap();
    std::fs::write(credentials.path().join("user"), "farfork\n").unwrap();
    let open_with = |prefix: &str, password: &str| {
        std::fs::write(credentials.path().join("password"), format!("{password}\n")).unwrap();
        let credentials = Some(credentials.path().to_owned());
        open_patiently(&EtcdLocation { credentials, ..servers.location(prefix) })
    };
    let catalog = open_with("/farfork", "word");
    catalog.write_volume(&volume_name("data"), &new_record()).unwrap();
    let error = open_with("/farfork", "wrong").read().unwrap_err().to_string();
    assert!(error.contains("authentication failed") && !error.contains("wrong"), "{error}");
    let directory = credentials.path().to_str().unwrap();
    assert!(error.contains("correct the files `user` and `password`") && error.contains(directory), "{error}");
    let error = open_with("/other", "word").read().unwrap_err().to_string();
    assert!(error.contains("permission denied") && error.contains("--prefix=true readwrite /other/`"), "{error}");
    assert!(error.contains("user grant-role farfork "), "{error}");
    let error = servers.open("/farfork").read().unwrap_err().to_string();
    assert!(error.contains("user name is empty") && error.contains("?credentials=DIR"), "{error}");
    servers.run_etcdctl(&["--user=root:secret", "user", "revoke-role", "farfork", "farfork"]);
    let error = catalog.read().unwrap_err().to_string();
    assert!(error.contains("permission denied"), "{error}");
}

#[test]
fn members_that_cannot_be_used_are_named_with_the_next_step() {
    let servers = EtcdServers::start(1);
    let refusal = |location: &EtcdLocation| {
        EtcdCatalog::open_with_limit(location, Duration::ZERO).unwrap().read().unwrap_err().to_string()
    };
    // Longer than a label of a name may be, so that no name server is asked.
    let host = "n".repeat(64);
    let error = refusal(&EtcdLocation { members: vec![format!("{host}:2379")], ..servers.location("/farfork") });
    assert!(error.contains(&format!("correct the host name of http://{host}:2379")), "{error}");
    let members = vec!["127.0.0.1:1".to_owned()];
    let error = refusal(&EtcdLocation { members, ..servers.location("/farfork") });
    assert!(error.contains("onnection refused") && error.contains("endpoint status"), "{error}");

    let credentials = tempfile::tempdir().unwrap();
    for file in ["user", "password"] {
        fs::write(credentials.path().join(file), "farfork").unwrap();
    }
    let credentials = Some(credentials.path().to_owned());
    let error = open_patiently(&EtcdLocation { credentials, ..servers.location("/farfork") }).read().unwrap_err();
    assert!(error.to_string().contains("etcd knows no users"), "{error}");
}

/// The commands of the message end the alarm.
#[test]
fn alarms_are_named_with_the_commands_that_end_them() {
    let servers = EtcdServers::start(1);
    let (catalog, name) = (servers.open("/farfork"), volume_name("data"));
    let revision = catalog.write_volume(&name, &new_record()).unwrap();
    assert_eq!(catalog.alarm(), None);
    let raise = |alarm: AlarmType| {
        let raised = catalog.connection.call(move |client| async move {
            client.maintenance_client().alarm(AlarmAction::Activate, alarm, None).await
        });
        raised.unwrap();
        catalog.alarm().unwrap()
    };
    let write = || catalog.write_volume(&name, &VolumeRecord { revision, ..new_record() });

    let alarm = raise(AlarmType::Nospace);
    catalog.read().unwrap();
    let error = write().unwrap_err().to_string();
    assert!(error.contains("database space exceeded") && error.contains("alarm disarm`"), "{error}");
    assert!(alarm.contains("NOSPACE"), "{alarm}");
    let commands: Vec<&str> = alarm.split('`').filter_map(|part| part.strip_prefix("etcdctl ")).collect();
    assert_eq!(commands.len(), 4, "{alarm}");
    for command in commands {
        servers.run_etcdctl(&command.split(' ').skip(1).collect::<Vec<_>>());
    }
    assert_eq!(catalog.alarm(), None);
    write().unwrap();

    let alarm = raise(AlarmType::Corrupt);
    let error = write().unwrap_err().to_string();
    assert!(alarm.contains("CORRUPT") && alarm.contains("member remove"), "{alarm}");
    assert!(error.contains("corrupt") && error.contains("member remove"), "{error}");
}
