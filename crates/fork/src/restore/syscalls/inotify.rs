//! inotify(7) instances: adds their watches under the numbers that the program knows.

use farfork_wire::Descriptor;
use farfork_wire::descriptor::OpenFile;
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::plan_layout::STEP_INOTIFY;
use super::open_files::OpenFileBuilder;
use super::{abi, value};

/// The ioctl(2) that sets the number of the next watch. Kernels without CONFIG_CHECKPOINT_RESTORE refuse it, and number
/// watches from 1.
const INOTIFY_IOC_SETNEXTWD: u32 = 0x4004_4900;

/// Creates an instance without watches. Not called for an instance that the daemon has created and passed.
pub(super) fn create_inotify(open_file_builder: &mut OpenFileBuilder<'_, '_>, open_file: u32, flags: u32) {
    let nonblocking = OFlags::NONBLOCK.bits();
    open_file_builder.set_step(STEP_INOTIFY, open_file);
    open_file_builder.syscalls.call_expecting(
        0,
        abi::INOTIFY_INIT1,
        &[value(flags & nonblocking | OFlags::CLOEXEC.bits())],
    );
    open_file_builder.store_open_file(0, open_file);
}

/// Adds the watches of all instances. An instance is in its slot, or among the passed descriptors (`passed`). Runs
/// after all steps that create or remove files, so that watches report no events that the restorer causes.
pub(super) fn add_watches(
    open_file_builder: &mut OpenFileBuilder<'_, '_>,
    descriptor: &Descriptor,
    passed: impl Fn(u32) -> Option<u32>,
) -> Result<(), RestoreError> {
    for (index, file) in (0..).zip(&descriptor.open_files) {
        let OpenFile::Inotify { watches, .. } = file else { continue };
        open_file_builder.set_step(STEP_INOTIFY, index);
        let place = passed(index).or_else(|| open_file_builder.slot_fd(index));
        let notify =
            value(place.ok_or(RestoreError::UnsupportedOpenFile { number: open_file_builder.first_fd(index) })?);
        for watch in watches {
            open_file_builder
                .syscalls
                .call_may_fail(abi::IOCTL, &[notify, value(INOTIFY_IOC_SETNEXTWD), value(watch.number)]);
            let path = open_file_builder.syscalls.text_argument(&watch.path)?;
            let added = [notify, path, value(watch.mask & !FS_EVENT_ON_CHILD)];
            open_file_builder.syscalls.call_expecting(watch.number.into(), abi::INOTIFY_ADD_WATCH, &added);
        }
    }
    Ok(())
}

/// FS_EVENT_ON_CHILD, which the kernel shows in fdinfo but does not accept in inotify_add_watch(2).
const FS_EVENT_ON_CHILD: u32 = 0x0800_0000;
