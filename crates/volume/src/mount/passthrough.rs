//! Passthrough: the kernel reads published data from the shared tree by itself, without a request to this process. See
//! Documentation/filesystems/fuse/fuse-passthrough.rst of the kernel.
//!
//! A passthrough reader does not see this client's unpublished data. So only a file without such data is opened in this way,
//! and while it is open, changes of its data are answered when they are published.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::sync::Arc;

use fuser::{BackingId, InitFlags, KernelConfig, ReplyOpen};
use rustix::io::Errno;

use super::client::{ClientState, VolumeClient};
use super::invalidation::DeferredAnswer;
use super::open_modes::AccessMode;
use crate::log::LogPoint;
use crate::record::{InodeNumber, RecordEffect};
use crate::view::InodeContent;

/// Enables passthrough, if the kernel has it (Linux 6.9). The shared tree must not be on a stacked file system such as
/// overlayfs.
pub(super) fn enable_passthrough(config: &mut KernelConfig) {
    let is_available = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
    if !is_available || config.set_max_stack_depth(1).is_err() {
        tracing::warn!("the kernel has no FUSE passthrough (Linux 6.9): each read is a request to this process");
    }
}

/// Answers to changes, in the order of the log. Each answer waits until its change is published.
#[derive(Default)]
pub(super) struct PublishedAnswers(VecDeque<(LogPoint, DeferredAnswer)>);

impl fmt::Debug for PublishedAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PublishedAnswers").field(&self.0.len()).finish()
    }
}

impl PublishedAnswers {
    /// Adds the answer to the change that ends at `point`, which is the head of the log.
    pub(super) fn add(&mut self, point: LogPoint, answer: DeferredAnswer) {
        self.0.push_back((point, answer));
    }

    /// Removes the answers to changes up to `point`, and returns them.
    pub(super) fn take_published(&mut self, point: LogPoint) -> Vec<DeferredAnswer> {
        let count = self.0.iter().take_while(|(end, _)| *end <= point).count();
        self.0.drain(..count).map(|(_, answer)| answer).collect()
    }
}

impl VolumeClient {
    /// Begins passthrough for open(2): registers the shared tree's file with the kernel if no program has it open, and
    /// counts the open file. Returns None if the kernel must not read this file by itself.
    ///
    /// While a file is open for passthrough, the kernel requires passthrough of each further open file of the inode. With
    /// O_RDWR, a shared mapping of such a file would change the shared tree directly.
    ///
    /// # Errors
    /// ETXTBSY for O_RDWR while the file is open for passthrough.
    pub(super) fn begin_passthrough(
        &self,
        inode: InodeNumber,
        access: AccessMode,
        reply: &ReplyOpen,
    ) -> Result<Option<Arc<BackingId>>, Errno> {
        if !self.options.read_passthrough {
            return Ok(None);
        }
        // Hold the lock until the open file is counted: a later change of the file also takes the lock, and then finds the
        // count.
        let state = self.lock();
        if self.base_files.has_passthrough(inode) {
            return match access {
                AccessMode::Read | AccessMode::Write => Ok(self.base_files.add_passthrough(inode)),
                AccessMode::ReadWrite => Err(Errno::TXTBSY),
            };
        }
        match self.base_files.get(&self.shared, inode) {
            Ok(Some(file)) if access == AccessMode::Read && is_published(&state, inode, &file) => {
                Ok(self.base_files.start_passthrough(inode, || reply.open_backing(&*file)))
            }
            _ => Ok(None),
        }
    }

    /// Whether an operation changes data that the kernel reads by itself.
    pub(super) fn changes_passthrough_data(&self, effects: &[RecordEffect]) -> bool {
        effects.iter().filter_map(changed_file).any(|inode| self.base_files.has_passthrough(inode))
    }
}

/// Whether the shared tree's file has exactly the data of an inode. The sizes differ while a change of another client is
/// published and not in the view yet.
fn is_published(state: &ClientState, inode: InodeNumber, file: &File) -> bool {
    let Ok(found) = state.namespace.readable_inode(inode) else { return false };
    let InodeContent::File(extents) = &found.content else { return false };
    extents.is_empty() && file.metadata().is_ok_and(|metadata| metadata.len() == found.attributes.size)
}

/// The file whose data or size an effect may change. Attributes include the size.
fn changed_file(effect: &RecordEffect) -> Option<InodeNumber> {
    match effect {
        RecordEffect::SetAttributes { inode, .. }
        | RecordEffect::WriteData { inode, .. }
        | RecordEffect::PunchHole { inode, .. }
        | RecordEffect::AllocateSpace { inode, .. }
        | RecordEffect::SetSize { inode, .. } => Some(*inode),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn answers_are_given_up_to_the_published_point() {
        let point = |sequence| LogPoint { sequence, ..LogPoint::START };
        let (mut answers, given) = (PublishedAnswers::default(), Arc::new(Mutex::new(Vec::new())));
        for sequence in [1, 2, 4] {
            let given = Arc::clone(&given);
            answers.add(point(sequence), Box::new(move || given.lock().unwrap().push(sequence)));
        }
        assert!(answers.take_published(point(0)).is_empty());
        answers.take_published(point(3)).into_iter().for_each(|answer| answer());
        assert_eq!(*given.lock().unwrap(), [1, 2]);
        assert_eq!(answers.take_published(point(4)).len(), 1);
    }
}
