//! Tests which peers a daemon admits at its control port, what each may request, and the log lines about refused peers.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use farfork_api::client::{connect_cluster, connect_network, request_with_timeout};
use farfork_api::failure::Failure;
use farfork_api::limits::QUERY_TIMEOUT;
use farfork_api::v1::{self, JoinRequest, KillRequest, ListNodesRequest};
use farfork_trust::{Credentials, Encryption, NODE_VALID, Role, TOKEN_VALID, TrustDirectory, UncertifiedKey, member};
use rustix::process::Signal;
use tokio::task::JoinSet;
use tonic::Code;

use crate::harness::{TestDaemon, block_on, name, run_dirs, token_file, trust_dir, until};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_machine_joins_with_a_token", joins),
    ("a_node_that_forwards_a_join_learns_no_secret", forwarded_join),
    ("a_wrong_token_is_counted_and_delays_the_next_attempt", guesses),
    ("concurrent_guesses_are_limited", guesses_at_once),
    ("a_join_is_forwarded_only_to_the_authority", passed_on_once),
    ("joining_needs_a_token", no_token),
    ("a_node_without_identity_creates_no_cluster", no_identity),
    ("each_role_may_call_its_methods", roles),
    ("strangers_are_named_and_refused", strangers),
    ("a_revoked_node_is_refused_by_every_node", revoked),
    ("a_revoked_node_is_not_called", revoked_is_left),
    ("a_client_gets_revocations_and_calls_no_revoked_node", client_gets_revocations),
    ("a_streaming_request_ends_when_its_certificate_becomes_invalid", standing),
    ("keys_and_authority_rotate_under_running_nodes", rotates),
];

fn open(directory: &TrustDirectory) -> Credentials {
    Credentials::open(directory, Encryption::On).expect("credentials")
}

fn issue(first: &TrustDirectory, role: Role, member: &str, at: SystemTime, valid: Duration) -> Credentials {
    let into = TrustDirectory::new(first.root().with_file_name(format!("issued-{role}-{member}")));
    member::issue_client_directory(first, &into, role, &name(member), at, valid).expect("it is issued");
    open(&into)
}

/// Sends a query as a client with these credentials.
fn ask(address: SocketAddr, credentials: &Credentials) -> Result<usize, Failure> {
    block_on(async {
        let mut client = connect_network(address, credentials).await?;
        let answer = client.list_nodes(request_with_timeout(QUERY_TIMEOUT, ListNodesRequest {})).await;
        Ok(answer.map_err(|status| Failure::from_status("nodes", &status))?.into_inner().nodes.len())
    })
}

fn kill(address: SocketAddr, credentials: &Credentials) -> Failure {
    block_on(async {
        let mut client = connect_network(address, credentials).await.expect("the daemon accepts the member");
        let request = KillRequest { child: "a.c0123456789abcdef".to_owned(), signal: 9, by_program: false };
        let answer = client.kill(request_with_timeout(QUERY_TIMEOUT, request)).await;
        Failure::from_status("kill", &answer.expect_err("there is no such child"))
    })
}

fn write_token(first: &TrustDirectory, run_dir: &Path) {
    let token = member::create_join_token(first, SystemTime::now(), TOKEN_VALID).expect("a token");
    fs::write(token_file(run_dir), token.to_text().as_bytes()).expect("a file");
}

fn joins() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let b = TestDaemon::start("b", &dir_b, Some(a.address()));
    // Join through a node without the authority, which forwards the request.
    let dir_c = dir_a.with_file_name("c");
    write_token(&first, &dir_c);
    let c = TestDaemon::start("c", &dir_c, Some(b.address()));
    [&a, &c].into_iter().for_each(|node| node.wait_alive(&["a", "b", "c"]));
    assert!(trust_dir(&dir_c, "c").join("identity.pem").exists());
    a.says(&["joins with a token", "node=c"]);
    assert!(
        !a.said()
            .contains(fs::read_to_string(token_file(&dir_c)).expect("a token").split('.').nth(1).expect("a secret"))
    );
}

/// A forwarding node sees a join request. It can repeat the request, but cannot join with its own key or under another name.
fn forwarded_join() {
    let (_parent, dir_a, _) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let token = member::create_join_token(&first, SystemTime::now(), TOKEN_VALID).expect("a token");
    let (machine, thief) = (UncertifiedKey::generate().expect("a key"), UncertifiedKey::generate().expect("a key"));
    let [request, stolen] = [&machine, &thief].map(|key| key.certificate_request().expect("a request"));
    let seen = JoinRequest {
        name: "c".to_owned(),
        proof: token.create_proof(&name("c"), &request).as_bytes().to_vec(),
        request,
        passed_on_for: String::new(),
    };
    let join = |request: JoinRequest| {
        block_on(async {
            let mut client = connect_cluster(&a.run_dir.socket()).await.expect("it answers");
            let answer = client.join(request_with_timeout(QUERY_TIMEOUT, request)).await;
            answer.map(|answer| answer.into_inner()).map_err(|status| status.code())
        })
    };
    let install = |key: &UncertifiedKey, answer: &v1::Credentials, into: &str| {
        let into = TrustDirectory::new(dir_a.with_file_name(into));
        member::install_join(&into, key, &name("c"), &answer.certificate, &answer.roster, token.authority)
    };
    let answer = join(seen.clone()).expect("it joins");
    install(&machine, &answer, "machine").expect("it is its own certificate");
    // A repeated request gives a certificate with the same name for the same key. A thief does not have the key.
    let again = join(seen.clone()).expect("an answer may be lost");
    install(&thief, &again, "thief").expect_err("the key is another");
    install(&machine, &again, "machine-again").expect("the key is the same");
    let others_key = JoinRequest { request: stolen, ..seen.clone() };
    let other_name = JoinRequest { name: "d".to_owned(), ..seen };
    assert_eq!(join(others_key).expect_err("the proof is of another request"), Code::Unauthenticated);
    assert_eq!(join(other_name).expect_err("the proof is of another name"), Code::Unauthenticated);
    a.says(&["a wrong join token", "wrong=2"]);
}

fn guesses() {
    let (_parent, dir_a, _) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let dir_c = dir_a.with_file_name("c");
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    // Each guess is a token of the right cluster with a wrong secret.
    let pin = member::create_join_token(&first, SystemTime::now(), TOKEN_VALID).expect("a token").authority;
    let mut last = String::new();
    for guess in 0..5 {
        fs::write(token_file(&dir_c), format!("farfork-join-1.{guess:032x}.{pin}")).expect("a file");
        let mut c = TestDaemon::spawn("c", &dir_c, Some(a.address()));
        assert!(!c.wait().success());
        last = c.said();
        assert!(last.contains("no node let it join") && last.contains("farfork cluster token"), "{last}");
    }
    assert!(last.contains("too many wrong join tokens"), "{last}");
    a.says(&["a wrong join token", "from=127.0.0.1", "wrong=3"]);
}

fn guesses_at_once() {
    const GUESSES: usize = 64;
    let (_parent, dir_a, _) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let request = UncertifiedKey::generate().expect("a key").certificate_request().expect("a request");
    let guess = JoinRequest { name: "c".to_owned(), proof: vec![7; 32], request, passed_on_for: String::new() };
    let looked_at = block_on(async {
        let client = connect_cluster(&a.run_dir.socket()).await.expect("it answers");
        let mut tasks = JoinSet::new();
        for _ in 0..GUESSES {
            let (mut client, guess) = (client.clone(), guess.clone());
            tasks.spawn(async move {
                client.join(request_with_timeout(QUERY_TIMEOUT, guess)).await.expect_err("a guess").code()
            });
        }
        tasks.join_all().await.into_iter().filter(|code| *code == Code::Unauthenticated).count()
    });
    assert!((1..=12).contains(&looked_at), "{looked_at} of {GUESSES} were compared");
}

fn passed_on_once() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let mut a = TestDaemon::start("a", &dir_a, None);
    let b = TestDaemon::start("b", &dir_b, Some(a.address()));
    let third = TestDaemon::start("a2", &dir_a.with_file_name("a2"), Some(a.address()));
    b.wait_alive(&["a", "a2", "b"]);
    let dir_c = dir_a.with_file_name("c");
    write_token(&first, &dir_c);
    // After the kill, `a` still counts as alive for some seconds.
    a.signal(Signal::KILL);
    a.wait();
    let mut c = TestDaemon::spawn("c", &dir_c, Some(b.address()));
    assert!(!c.wait().success());
    assert!(c.said().contains("no reachable node holds the cluster's authority"), "{}", c.said());
    assert!(!third.said().contains("was forwarded to this node"), "{}", third.said());
}

fn no_token() {
    let (_parent, dir_a, _) = run_dirs();
    let a = TestDaemon::start("a", &dir_a, None);
    let mut c = TestDaemon::spawn("c", &dir_a.with_file_name("c"), Some(a.address()));
    assert!(!c.wait().success());
    let said = c.said();
    assert!(said.contains("--token-file") && said.contains("farfork cluster token"), "{said}");
    // With a token of another cluster, the machine refuses to send the secret.
    let (_other, other_dir, _) = run_dirs();
    write_token(&TrustDirectory::new(trust_dir(&other_dir, "a")), &dir_a.with_file_name("c"));
    let mut c = TestDaemon::spawn("c", &dir_a.with_file_name("c"), Some(a.address()));
    assert!(!c.wait().success());
    assert!(c.said().contains("not a node of the join token's cluster"), "{}", c.said());
    assert!(!a.said().contains("wrong join token"));
}

fn no_identity() {
    let parent = tempfile::tempdir().expect("a directory");
    let run_dir = parent.path().join("alone");
    let trust = trust_dir(&run_dir, "alone");
    let mut alone = TestDaemon::spawn("alone", &run_dir, None);
    assert!(!alone.wait().success());
    let said = alone.said();
    let init = format!("`farfork cluster init --name alone --trust {}`", trust.display());
    assert!(said.contains(&init) && said.contains("--join and --token-file"), "{said}");
    assert!(!trust.exists(), "the daemon made {}", trust.display());
    let created =
        member::create_cluster(&TrustDirectory::new(&trust), &name("test"), &name("alone"), SystemTime::now());
    created.expect("a cluster");
    drop(alone);
    assert_eq!(TestDaemon::start("alone", &run_dir, None).alive(), ["alone"]);
}

fn roles() {
    let (_parent, dir_a, _) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let now = SystemTime::now();
    for (role, may_kill) in [(Role::Node, true), (Role::Client, true), (Role::ReadOnly, false)] {
        let credentials = issue(&first, role, "somebody", now, NODE_VALID);
        assert_eq!(ask(a.address(), &credentials).expect("every role may query"), 1);
        let failure = kill(a.address(), &credentials);
        assert_eq!(failure.cause().contains("but client is required"), !may_kill, "{role}: {failure}");
        assert_eq!(failure.cause().contains("no such child"), may_kill, "{role}: {failure}");
    }
    a.says(&["refused", "farfork://test/read-only/somebody"]);
}

fn strangers() {
    let (_parent, dir_a, _) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let member = issue(&first, Role::Client, "member", SystemTime::now(), NODE_VALID);
    let (_other, other_dir, _) = run_dirs();
    let stranger = open(&TrustDirectory::new(trust_dir(&other_dir, "a")));
    let failure = ask(a.address(), &stranger).expect_err("the authority is another");
    assert!(failure.to_string().contains("farfork://test/node/a is not signed by an authority"), "{failure}");

    let day = Duration::from_secs(24 * 3600);
    let expired = issue(&first, Role::Client, "late", SystemTime::now() - 2 * day, day);
    let failure = ask(a.address(), &expired).expect_err("it has expired");
    assert!(failure.to_string().contains("it has expired"), "{failure}");
    a.says(&["from 127.0.0.1", "farfork://test/client/late has expired"]);

    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16, 3, 1, 0, 4, 1, 2, 3, 4],
        &[7; 9000],
    ] {
        let mut stream = TcpStream::connect(a.address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        // The daemon may close the connection before all bytes are written.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 100, "the daemon sends at most a TLS alert: {answer:?}");
        let port = stream.local_addr().expect("an address").port().to_string();
        a.says(&["is refused", &format!("from 127.0.0.1:{port}")]);
    }
    a.says(&["it does not speak TLS"]);
    assert_eq!(ask(a.address(), &member).expect("other clients are still served"), 1);
}

fn revoked() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let b = TestDaemon::start("b", &dir_b, Some(a.address()));
    let out = issue(&first, Role::Node, "out", SystemTime::now(), NODE_VALID);
    a.wait_alive(&["a", "b"]);
    assert_eq!(ask(a.address(), &out).expect("still a member"), 2);
    member::revoke_identity(&first, Role::Node, &name("out"), SystemTime::now).expect("it is revoked");
    for node in [&a, &b] {
        let refused = until("it is out", || ask(node.address(), &out).err());
        assert!(refused.to_string().contains("revoked"), "{refused}");
        node.says(&["farfork://test/node/out was revoked"]);
    }
    b.says(&["a newer roster is in force"]);
    assert_eq!(a.alive(), ["a", "b"]);
}

fn client_gets_revocations() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let b = TestDaemon::start("b", &dir_b, Some(a.address()));
    for role in [Role::Client, Role::ReadOnly] {
        issue(&first, role, "somebody", SystemTime::now(), NODE_VALID);
    }
    let files = |role| TrustDirectory::new(first.root().with_file_name(format!("issued-{role}-somebody")));
    member::revoke_identity(&first, Role::Node, &name("b"), SystemTime::now).expect("it is revoked");
    let (_, roster) = first.read_roster().expect("a roster");
    for role in [Role::Client, Role::ReadOnly] {
        // `b` continues to run with the last roster that it received, so only the client itself can refuse.
        ask(b.address(), &open(&files(role))).expect("the client does not know the revocation");
        until("the client has the new roster", || {
            ask(a.address(), &open(&files(role))).expect("it answers");
            (files(role).read_roster().expect("a roster").1 == roster).then_some(())
        });
        let refused = ask(b.address(), &open(&files(role))).expect_err("it was revoked");
        assert!(refused.to_string().contains("farfork://test/node/b was revoked"), "{refused}");
    }
}

/// Sends a request that stays open until the daemon closes the connection. Returns the error.
fn stands(address: SocketAddr, credentials: Credentials) -> JoinHandle<String> {
    thread::spawn(move || {
        block_on(async {
            let mut client = connect_network(address, &credentials).await.expect("the daemon accepts the member");
            let nothing = tokio_stream::pending::<v1::AttachInput>();
            client.attach(nothing).await.expect_err("it names no child").to_string()
        })
    })
}

fn standing() {
    let (_parent, dir_a, _) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let now = SystemTime::now();
    let revoked = stands(a.address(), issue(&first, Role::Client, "revoked", now, NODE_VALID));
    let expired = stands(a.address(), issue(&first, Role::Client, "brief", now, Duration::from_secs(8)));
    let of_old = stands(a.address(), issue(&first, Role::Client, "old", now, NODE_VALID));
    let ended = |stands: JoinHandle<String>| {
        until("it is cut off", || stands.is_finished().then_some(()));
        stands.join().expect("the thread does not panic")
    };
    ended(expired);
    a.says(&["closed a control-port connection", "farfork://test/client/brief has expired"]);
    assert!(!revoked.is_finished() && !of_old.is_finished(), "other connections stay open");
    member::revoke_identity(&first, Role::Client, &name("revoked"), SystemTime::now).expect("it is revoked");
    ended(revoked);
    a.says(&["closed a control-port connection", "farfork://test/client/revoked was revoked"]);
    assert!(!of_old.is_finished(), "other connections stay open");
    member::begin_rotation(&first, SystemTime::now()).expect("a second authority");
    until("a has a certificate of the new authority", || open(&first).is_issued_by_current_authority().then_some(()));
    assert!(!of_old.is_finished(), "the old one is still trusted");
    member::end_rotation(&first).expect("the rotation ends");
    ended(of_old);
    a.says(&["closed a control-port connection", "farfork://test/client/old is not signed by an authority"]);
    assert_eq!(a.alive(), ["a"]);
}

fn revoked_is_left() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let a = TestDaemon::start("a", &dir_a, None);
    let b = TestDaemon::start("b", &dir_b, Some(a.address()));
    let dir_c = dir_a.with_file_name("c");
    write_token(&first, &dir_c);
    let c = TestDaemon::start("c", &dir_c, Some(a.address()));
    [&b, &c].into_iter().for_each(|node| node.wait_alive(&["a", "b", "c"]));
    member::revoke_identity(&first, Role::Node, &name("c"), SystemTime::now).expect("it is revoked");
    // `c` still replies. `a` and `b` have connections to it, and must close them.
    for node in [&a, &b] {
        until("c is not a member", || {
            let nodes = node.nodes().expect("it answers");
            nodes.iter().all(|known| known.name != "c").then_some(())
        });
        node.says(&["was revoked, and is no longer a member", "node=c"]);
    }
    assert_eq!(a.alive(), ["a", "b"]);
    // `c` joins again with a token.
    drop(c);
    fs::remove_dir_all(trust_dir(&dir_c, "c")).expect("its identity");
    write_token(&first, &dir_c);
    let c = TestDaemon::start("c", &dir_c, Some(a.address()));
    [&b, &c].into_iter().for_each(|node| node.wait_alive(&["a", "b", "c"]));
}

fn rotates() {
    let (_parent, dir_a, dir_b) = run_dirs();
    let first = TrustDirectory::new(trust_dir(&dir_a, "a"));
    let second = TrustDirectory::new(trust_dir(&dir_b, "b"));
    let mut a = TestDaemon::start("a", &dir_a, None);
    let b = TestDaemon::start("b", &dir_b, Some(a.address()));
    let before = fs::read(second.identity_path()).expect("its key");
    member::begin_rotation(&first, SystemTime::now()).expect("a second authority");
    let authority = first.read_roster().expect("a roster").0.authorities()[0].clone();
    // Both nodes renew their certificates without a command.
    let has_new = |directory: &TrustDirectory| open(directory).is_issued_by_current_authority();
    until("both have keys of the new authority", || (has_new(&first) && has_new(&second)).then_some(()));
    assert_ne!(fs::read(second.identity_path()).expect("its key"), before);
    member::end_rotation(&first).expect("the rotation ends");
    let only_new =
        |directory: &TrustDirectory| directory.read_roster().expect("a roster").0.authorities() == [authority.clone()];
    until("both trust the new one alone", || (only_new(&first) && only_new(&second)).then_some(()));
    assert_eq!((a.alive(), b.alive()), (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()]));
    a.signal(Signal::TERM);
    a.wait();
    let a = TestDaemon::start("a", &dir_a, Some(b.address()));
    a.wait_alive(&["a", "b"]);
}
