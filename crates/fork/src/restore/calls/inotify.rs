//! inotify(7): watches with the numbers that the program knows.

use farfork_wire::descriptor::InotifyWatch;
use rustix::fs::OFlags;

use super::super::RestoreError;
use super::super::layout::STEP_INOTIFY;
use super::files::Bench;
use super::{number, value};

/// What is watched for a moment to use up a number that the program has given back. Nobody watches it in earnest.
const NOBODYS: &str = "/proc/self/attr";

/// Bytes read at a time of the events that giving numbers back makes.
const EVENTS_BYTES: usize = 4096;
const EVENT_BYTES: u32 = 16;

/// Watches are numbered from 1 on, one after the other.
pub(super) fn make(
    bench: &mut Bench<'_, '_>,
    (open_file, number): (u32, u32),
    flags: u32,
    watches: &[InotifyWatch],
) -> Result<(), RestoreError> {
    let script = &mut *bench.script;
    script.about(STEP_INOTIFY, number);
    let nonblocking = OFlags::NONBLOCK.bits();
    script.gives(0, number::INOTIFY_INIT1, &[value(nonblocking | OFlags::CLOEXEC.bits())]);
    let (nobodys, mut next) = (script.text(NOBODYS)?, 1);
    for watch in watches {
        while next < watch.number {
            script.gives(next.into(), number::INOTIFY_ADD_WATCH, &[value(0_u32), nobodys, value(IN_UNMOUNT_MASK)]);
            script.gives(0, number::INOTIFY_RM_WATCH, &[value(0_u32), value(next)]);
            next += 1;
        }
        let path = script.text(&watch.path)?;
        let added = [value(0_u32), path, value(watch.mask & !KERNELS_OWN)];
        script.gives(watch.number.into(), number::INOTIFY_ADD_WATCH, &added);
        next += 1;
    }
    // One event tells of each number that was given back.
    let events = (next - 1 - watches.len() as u32) * EVENT_BYTES;
    let room = script.bytes(&[0; EVENTS_BYTES])?;
    for _ in 0..events.div_ceil(EVENTS_BYTES as u32) {
        script.call(number::READ, &[value(0_u32), room, value(EVENTS_BYTES as u64)]);
    }
    script.gives(0, number::FCNTL, &[value(0_u32), value(number::F_SETFL), value(flags & nonblocking)]);
    bench.put_aside(0, open_file);
    Ok(())
}

/// IN_ATTRIB: some event must be asked for.
const IN_UNMOUNT_MASK: u32 = 4;

/// FS_EVENT_ON_CHILD, which the kernel shows and does not take.
const KERNELS_OWN: u32 = 0x0800_0000;
