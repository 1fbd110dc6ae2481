//! A member of a cluster, with its files.

use std::sync::LazyLock;
use std::time::SystemTime;

use farfork_trust::{Credentials, Encryption, TrustDirectory, member};
use farfork_wire::NodeName;

/// The cluster's first node, with its authority.
pub static MEMBER: LazyLock<Member> = LazyLock::new(Member::new);

/// A member.
pub struct Member {
    /// The directory of its files.
    pub directory: TrustDirectory,
    /// The credentials in `directory`, loaded for connections.
    pub credentials: Credentials,
    /// The directory of the files. It is inside a directory that `cargo xtask fuzz` removes, because a static is never
    /// dropped.
    _scratch: tempfile::TempDir,
}

impl Member {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory for the member's files");
        let directory = TrustDirectory::new(scratch.path().join("trust"));
        let name = |text: &str| NodeName::new(text).expect("a name");
        member::create_cluster(&directory, &name("blue"), &name("n1"), SystemTime::now()).expect("a cluster");
        let credentials = Credentials::open(&directory, Encryption::On).expect("its files are good");
        Self { directory, credentials, _scratch: scratch }
    }
}
