//! A volume whose catalog is in etcd.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farfork_cluster::catalog::CatalogLocation;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::test_node::WAIT_LIMIT;
use super::volume_cluster::VolumeCluster;

pub(crate) const TESTS: &[(&str, fn())] = &[("a_volume_agrees_in_etcd", a_volume_agrees_in_etcd)];

/// One member of etcd, killed when this value is dropped.
struct EtcdServer {
    address: String,
    process: Child,
    _data: TempDir,
}

impl EtcdServer {
    fn start() -> Self {
        let data = TempDir::new().unwrap();
        let listeners = [0; 2].map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let [address, peer] = listeners.map(|listener| listener.local_addr().unwrap().to_string());
        let (url, peer_url) = (format!("http://{address}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(data.path());
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("default={peer_url}")]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = Self { address, process: process.expect("`make setup` installs etcd-server"), _data: data };
        let (catalog, started) = (server.location().open().unwrap(), Instant::now());
        while let Err(error) = catalog.read() {
            assert!(started.elapsed() < WAIT_LIMIT, "{error}");
        }
        server
    }

    fn location(&self) -> CatalogLocation {
        format!("etcd://{}/volumes", self.address).parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two clients take turns. While etcd does not answer, calls wait, and continue when it does.
fn a_volume_agrees_in_etcd() {
    const PAUSE: Duration = Duration::from_secs(2);
    let server = EtcdServer::start();
    let cluster = VolumeCluster::with_catalog(server.location());
    let (first, second) = (cluster.path(0), cluster.path(1));
    fs::write(first.join("a"), "one").unwrap();
    assert_eq!(fs::read_to_string(second.join("a")).unwrap(), "one");
    server.signal(Signal::STOP);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(PAUSE);
            server.signal(Signal::CONT);
        });
        fs::write(second.join("a"), "two").unwrap();
    });
    assert_eq!(fs::read_to_string(first.join("a")).unwrap(), "two");
    let mut file = OpenOptions::new().append(true).open(first.join("a")).unwrap();
    file.write_all(b", three").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(second.join("a")).unwrap(), "two, three");
    cluster.published_tree();
}
