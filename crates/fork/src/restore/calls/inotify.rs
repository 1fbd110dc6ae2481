//! inotify(7): watches with the numbers that the program knows.

use farfork_wire::descriptor::InotifyWatch;
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::STEP_INOTIFY;
use super::files::Bench;
use super::{number, value};

/// Says which number the next watch is to have; a kernel that can checkpoint lets one say. Without, they are numbered from 1 on.
const SET_NEXT_NUMBER: u32 = 0x4004_4900;

/// `passed`: the descriptor of one that the daemon has made.
pub(super) fn make(
    bench: &mut Bench<'_, '_>,
    (open_file, number, passed): (u32, u32, Option<u32>),
    flags: u32,
    watches: &[InotifyWatch],
) -> Result<(), RestoreError> {
    let script = &mut *bench.script;
    script.about(STEP_INOTIFY, number);
    let nonblocking = OFlags::NONBLOCK.bits();
    if passed.is_none() {
        script.gives(0, number::INOTIFY_INIT1, &[value(flags & nonblocking | OFlags::CLOEXEC.bits())]);
    }
    let notify = value(passed.unwrap_or(0));
    for watch in watches {
        script.may_fail(number::IOCTL, &[notify, value(SET_NEXT_NUMBER), value(watch.number)]);
        let path = script.text(&watch.path)?;
        let added = [notify, path, value(watch.mask & !KERNELS_OWN)];
        script.gives(watch.number.into(), number::INOTIFY_ADD_WATCH, &added);
    }
    if passed.is_none() {
        bench.put_aside(0, open_file);
    }
    Ok(())
}

/// FS_EVENT_ON_CHILD, which the kernel shows and does not take.
const KERNELS_OWN: u32 = 0x0800_0000;
