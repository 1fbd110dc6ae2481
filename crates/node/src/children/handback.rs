//! Hands children back to a restarted pager. The pager gets each child's id, and the queue of userfaultfds that the
//! container's stub holds (pidfd_getfd(2)). If this transfer fails, threads of the child would wait for pages forever.
//! Processes that the child was just forking when the old pager died have read zeroes. In both cases the child is
//! killed, and the reason is recorded in its directory.

use std::fs;
use std::io;

use farfork_fork::pager::LOST_FILE;
use farfork_fork::restore::STUB_QUEUE_FD;
use farfork_sys::pidfd;
use farfork_sys::process::ProcStat;
use farfork_sys::process_identity::ProcessIdentity;

use super::{Child, ChildSupervisor};

impl ChildSupervisor {
    /// Hands back every live child that needs a pager and that no pager serves. May be repeated. Blocks.
    pub(crate) fn hand_back_children(&self) {
        let living: Vec<_> =
            self.all().into_iter().filter(|child| child.is_alive() && !child.is_memory_settled()).collect();
        if living.is_empty() {
            return;
        }
        let served = match self.pager.client().list_children() {
            Ok(served) => served,
            Err(error) => return tracing::error!(%error, "it is not known which children the pager serves"),
        };
        for child in living.iter().filter(|child| !served.contains(&child.record().id)) {
            let id = &child.record().id;
            match self.hand_back_child(child) {
                Ok(0) => tracing::warn!(child = %id, "handed back to the pager"),
                Ok(lost) => kill_memory_lost(child, &format!("{lost} processes that it was just forking read zeroes")),
                // The child may have just ended.
                Err(_) if child.host_pid().is_err() => {}
                Err(cause) => kill_memory_lost(child, &cause),
            }
        }
    }

    fn hand_back_child(&self, child: &Child) -> Result<usize, String> {
        let queue = (|| {
            let process: ProcessIdentity = child.record().process.parse()?;
            // The stub is the child's parent for all of the child's life.
            let stub = pidfd::open(ProcStat::read(process.pid)?.parent)?;
            if process.open()?.is_none() {
                return Err(io::ErrorKind::NotFound.into());
            }
            pidfd::get_fd(&stub, STUB_QUEUE_FD)
        })();
        let queue =
            queue.map_err(|error: io::Error| format!("its stub's userfaultfd queue cannot be copied: {error}"))?;
        let client = self.pager.client();
        client
            .reclaim(&child.record().id, child.directory(), std::os::fd::AsFd::as_fd(&queue))
            .map_err(|error| error.to_string())
    }
}

fn kill_memory_lost(child: &Child, cause: &str) {
    let id = &child.record().id;
    let text = format!(
        "child {id} lost its memory: its pager, keeper and holder were killed together, and {cause}; it is ended: fork again"
    );
    tracing::error!("{text}");
    if let Err(error) = fs::write(child.directory().join(LOST_FILE), format!("{text}\n")) {
        tracing::error!(child = %id, %error, "the reason cannot be recorded");
    }
    child.kill_memory_lost();
}
