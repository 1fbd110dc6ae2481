//! A pager outlives its daemon, and the next daemon may set another trust policy.

use std::thread::sleep;
use std::time::{Duration, SystemTime};

use farfork_fork::pager::{ClientError, PagingStrategy, RELEASE, TrustPolicy};
use farfork_trust::{TrustDirectory, member};
use farfork_wire::NodeName;

use crate::scenarios::with_program;

/// All scenarios, by name.
pub(crate) const ALL: &[(&str, fn())] = &[(
    "a_pager_follows_the_trust_policy_of_the_current_daemon",
    a_pager_follows_the_trust_policy_of_the_current_daemon,
)];

fn a_pager_follows_the_trust_policy_of_the_current_daemon() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("trust");
    let name = |text: &str| NodeName::new(text).unwrap();
    member::create_cluster(&TrustDirectory::new(&directory), &name("blue"), &name("n2"), SystemTime::now()).unwrap();
    let members = TrustPolicy::ClusterMembers { directory, is_encrypted: true };
    let strategy = PagingStrategy { unreachable_timeout: Duration::from_secs(30), ..PagingStrategy::default() };
    with_program("pause_between", strategy, |stage| {
        let client = stage.bed.client.clone();
        stage.program.meet();
        let hello = client.hello().unwrap();
        assert_eq!((hello.release.as_str(), hello.trust_policy), (RELEASE, TrustPolicy::Unauthenticated));
        let (keeper, pager) = stage.bed.processes();
        client.set_trust_policy(&members).unwrap();
        assert_eq!(client.hello().unwrap().trust_policy, members);
        let now = stage.bed.processes();
        assert!(now.0 == keeper && now.1 != pager, "another pager of the same keeper: {now:?}");
        // The owner of this test presents no certificate, so the pager no longer reads from it.
        stage.program.let_go();
        sleep(Duration::from_millis(800));
        assert!(!stage.program.has_ended(), "it waits");
        stage.bed.kill_pager();
        assert_eq!(client.hello().unwrap().trust_policy, members, "the next pager has the policy, too");
        client.set_trust_policy(&TrustPolicy::Unauthenticated).unwrap();
        stage.program.expect_success();
        assert_eq!(stage.bed.stats(&stage.program).loss_reason, None);
        // With an unusable policy, no peer is trusted. The policy can be replaced.
        let nothing = TrustPolicy::ClusterMembers { directory: scratch.path().join("nothing"), is_encrypted: true };
        assert!(matches!(client.set_trust_policy(&nothing), Err(ClientError::NoReply { .. })));
        client.set_trust_policy(&members).unwrap();
    });
}
