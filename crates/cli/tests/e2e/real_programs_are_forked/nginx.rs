//! nginx: as one process, and with worker processes.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::web::{children_of, end, get};
use crate::harness::service::{self, RequestLoad};
use crate::harness::{Cluster, Service, StartedChild, require_fresh_child_same, wait};

/// Size of the served file, in bytes: more than nginx's buffers.
const FILE_BYTES: usize = 300_000;

const WORKERS_COUNT: usize = 2;

/// Longest wait until nginx has started workers and ended old ones, on a busy machine.
const RELOAD_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn alone(cluster: &Cluster) {
    serve(cluster, "master_process off;", |_, _, _| {});
}

/// A child of farfork has copies of the workers, with the same ids. On a reload, each server replaces only its own
/// workers.
pub(super) fn with_workers(cluster: &Cluster) {
    serve(cluster, &format!("user root;\nworker_processes {WORKERS_COUNT};"), |server, port, children| {
        let workers = workers_of(server);
        assert_eq!(workers.len(), WORKERS_COUNT, "the parent's workers");
        for child in children {
            let answered = service::run_in_network_of(child.pid, || get(&mut service::connect(port), "/worker"));
            assert!(workers.contains(&answered), "{}: {answered} is not a worker of {workers:?}", child.id);
            cluster.first().json(&["kill", "--signal", "HUP", &child.id]);
            service::run_in_network_of(child.pid, || require_others(port, &workers));
        }
        assert_eq!(workers_of(server), workers, "the parent's workers changed with those of a child");
        server.signal(Signal::HUP);
        require_others(port, &workers);
    });
}

/// Serves a file in children and parent, under load. `further` then runs with the server and the children.
fn serve(cluster: &Cluster, processes: &str, further: impl FnOnce(&Service, u16, &[StartedChild])) {
    let port = service::free_port();
    let content: String = (0..FILE_BYTES).map(|at| char::from(b'a' + (at * at % 23) as u8)).collect();
    let mut server = Service::start(port, |directory| {
        fs::write(directory.join("file"), &content).expect("a scratch directory can be written");
        let file = directory.join("nginx.conf");
        fs::write(&file, configuration(port, processes)).expect("a scratch directory can be written");
        let mut command = Command::new("nginx");
        command.arg("-e").arg(directory.join("errors")).arg("-p").arg(directory).arg("-c").arg(file);
        command
    });
    require_fresh_child_same(cluster.first(), cluster.name(1), server.pid());
    let expected = content.clone();
    let load = RequestLoad::start(port, move |stream| assert_eq!(get(stream, "/file"), expected));
    let (_seed, children) = children_of(cluster, &server, &[]);
    for child in &children {
        // Three requests on two connections.
        let said = service::run_in_network_of(child.pid, || {
            let mut stream = service::connect(port);
            [get(&mut stream, "/file"), get(&mut stream, "/file"), get(&mut service::connect(port), "/count")]
        });
        assert!(said[0] == content && said[1] == content, "{}: another file", child.id);
        // The server counts these three requests, and the requests of the load that were open at the fork. The fork reset
        // the connections of the load.
        let counted = said[2].lines().nth(2).and_then(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        assert!(counted.is_some_and(|requests| requests >= 3), "{}: {}", child.id, said[2]);
    }
    assert!(load.stop() > 0, "the parent answered no request");
    assert_eq!(get(&mut service::connect(port), "/file"), content);
    further(&server, port, &children);
    server.require_alive();
    end(cluster, &children);
}

fn configuration(port: u16, processes: &str) -> String {
    format!(
        "daemon off;\n{processes}\npid nginx.pid;\nevents {{ worker_connections 64; }}\nhttp {{\n  access_log off;\n  \
         client_body_temp_path body;\n  proxy_temp_path proxy;\n  fastcgi_temp_path fastcgi;\n  uwsgi_temp_path uwsgi;\n  \
         scgi_temp_path scgi;\n  keepalive_requests 1000000000;\n  server {{\n    listen 127.0.0.1:{port};\n    root .;\n    \
         location = /count {{ stub_status; }}\n    location = /worker {{ return 200 $pid; }}\n  }}\n}}\n"
    )
}

/// Returns the process ids of a server's workers, without the templates of seeds.
fn workers_of(server: &Service) -> BTreeSet<String> {
    let pid = server.pid_text();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("the server lives");
    let is_traced = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
    };
    children.split_whitespace().filter(|pid| !is_traced(pid)).map(str::to_owned).collect()
}

/// Waits until a server answers only with workers that are not in this set.
fn require_others(port: u16, workers: &BTreeSet<String>) {
    let ask = || get(&mut service::connect(port), "/worker");
    wait::wait_until(&format!("other workers than {workers:?} answer"), RELOAD_LIMIT, || {
        (0..2 * WORKERS_COUNT).all(|_| !workers.contains(&ask())).then_some(())
    });
}
