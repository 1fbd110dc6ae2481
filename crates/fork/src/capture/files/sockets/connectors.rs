//! The identity of the client of a Unix connection that waits in a backlog. The kernel records it at connect(2), and shows it
//! only after accept(2), which cannot be undone (SO_PEERCRED). So it is derived from the processes that hold the client's
//! socket, if all of them have the credentials that the inode of the socket shows.

use farfork_sys::process::ProcStatus;
use farfork_wire::descriptor::{FileStatus, PeerCredentials};

use super::SocketContents;

/// The process that has connected a socket, as far as its holders tell.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum UnixConnector {
    /// The socket does not wait to be accepted, or no process of the tree has it open.
    #[default]
    NoHolder,
    /// All its holders have these credentials.
    Credentials(PeerCredentials),
    /// A holder differs from another, or from the owner of the socket. One of them may have had other credentials when it
    /// called connect(2).
    Ambiguous,
}

impl UnixConnector {
    /// The credentials of the connector; `None` if they are unknown.
    pub(super) fn credentials(&self) -> Option<&PeerCredentials> {
        match self {
            Self::Credentials(credentials) => Some(credentials),
            Self::NoHolder | Self::Ambiguous => None,
        }
    }

    /// Adds a thread that can use the socket. `owner` is the owner of its inode: the credentials for file access of the thread
    /// that made the socket.
    fn add_holder(&mut self, owner: FileStatus, status: &ProcStatus) {
        let ([_, uid, _, file_uid], [_, gid, _, file_gid]) = (status.uids, status.gids);
        let holder = PeerCredentials { uid, gid, groups: status.groups.clone() };
        let has_made_it = (file_uid, file_gid) == (owner.uid, owner.gid);
        *self = match self {
            Self::NoHolder if has_made_it => Self::Credentials(holder),
            Self::Credentials(known) if has_made_it && *known == holder => return,
            _ => Self::Ambiguous,
        };
    }
}

impl SocketContents {
    /// Whether a Unix socket is connected and waits to be accepted, or its other end is closed.
    fn may_wait_for_accept(&self) -> bool {
        self.unix.as_ref().is_some_and(|unix| unix.peer == Some(0))
    }

    /// Adds the threads of a process that has the socket open.
    pub(in super::super) fn add_holder<'a>(
        &mut self,
        owner: FileStatus,
        threads: impl IntoIterator<Item = &'a ProcStatus>,
    ) {
        if self.may_wait_for_accept() {
            threads.into_iter().for_each(|status| self.connector.add_holder(owner, status));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: FileStatus = FileStatus { mode: 0o777, uid: 1003, gid: 500 };

    fn status(uid: u32, groups: &[u32]) -> ProcStatus {
        ProcStatus { uids: [uid; 4], gids: [500; 4], groups: groups.to_vec(), ..ProcStatus::default() }
    }

    fn connector_of(holders: &[ProcStatus]) -> UnixConnector {
        let mut connector = UnixConnector::default();
        holders.iter().for_each(|holder| connector.add_holder(OWNER, holder));
        connector
    }

    #[test]
    fn holders_with_the_credentials_of_the_owner_have_connected() {
        let expected = PeerCredentials { uid: 1003, gid: 500, groups: vec![600, 601] };
        let holders = [status(1003, &[600, 601]), status(1003, &[600, 601])];
        assert_eq!(connector_of(&holders), UnixConnector::Credentials(expected));
    }

    #[test]
    fn other_credentials_of_a_holder_are_ambiguous() {
        assert_eq!(connector_of(&[]), UnixConnector::NoHolder);
        assert_eq!(connector_of(&[status(0, &[])]), UnixConnector::Ambiguous);
        assert_eq!(connector_of(&[status(1003, &[]), status(0, &[])]), UnixConnector::Ambiguous);
        assert_eq!(connector_of(&[status(1003, &[]), status(1003, &[600])]), UnixConnector::Ambiguous);
    }
}
