//! Creates an inotify(7) instance whose queue has lost events (IN_Q_OVERFLOW), for `passed_objects`. The events in a
//! parent's queue cannot be read without removing them. So the child gets an overflow event instead, and must check the
//! watched files itself. Only the kernel can create this event: this module overfills a queue, then removes all events
//! before the overflow event.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, fchmod, fcntl_setfl};
use rustix::io::{ioctl_fionread, read};

/// Maximum length of a queue that is filled, in events. To fill the kernel's default, 16,384 events, takes about 10 ms.
const EVENTS_MAX: u64 = 1 << 20;

/// Size of an event without a name, in bytes.
const EVENT_BYTES: u64 = 16;

/// Bytes per read(2): whole events.
const READ_CHUNK_BYTES: usize = 64 << 10;

/// Creates an instance without watches, whose queue contains only the overflow event. `flags` are its O_* flags.
pub(super) fn create_overflowed_inotify(flags: u32) -> io::Result<OwnedFd> {
    let events = read_queue_limit()?;
    let notify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let touched = [create_event_source()?, create_event_source()?];
    let watch =
        |file: &File| inotify::add_watch(&notify, format!("/proc/self/fd/{}", file.as_raw_fd()), WatchFlags::ATTRIB);
    let watches = [watch(&touched[0])?, watch(&touched[1])?];
    // Alternate two kinds of events, because the kernel merges equal consecutive events.
    for event in 0..=events {
        fchmod(&touched[(event % 2) as usize], Mode::RUSR)?;
    }
    for watch in watches {
        inotify::remove_watch(&notify, watch)?;
    }
    discard_events(&notify, events * EVENT_BYTES)?;
    if ioctl_fionread(&notify)? != EVENT_BYTES {
        return Err(io::Error::other("its queue cannot be filled"));
    }
    fcntl_setfl(&notify, OFlags::from_bits_retain(flags) & OFlags::NONBLOCK)?;
    Ok(notify)
}

fn create_event_source() -> io::Result<File> {
    farfork_sys::memfd::create("farfork-events", false)
}

fn read_queue_limit() -> io::Result<u64> {
    const QUEUE_LIMIT_PATH: &str = "/proc/sys/fs/inotify/max_queued_events";
    let text = fs::read_to_string(QUEUE_LIMIT_PATH)?;
    let events = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    if events > EVENTS_MAX {
        return Err(io::Error::other(format!("{QUEUE_LIMIT_PATH} is {events} here; set it to {EVENTS_MAX} at most")));
    }
    Ok(events)
}

fn discard_events(notify: &OwnedFd, mut bytes: u64) -> io::Result<()> {
    let mut piece = vec![0; READ_CHUNK_BYTES];
    while bytes > 0 {
        let wanted = bytes.min(READ_CHUNK_BYTES as u64) as usize;
        bytes -= read(notify, &mut piece[..wanted])? as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inotify_reports_an_overflow_and_later_events() {
        let notify = create_overflowed_inotify(OFlags::NONBLOCK.bits()).unwrap();
        let (file, mut bytes) = (create_event_source().unwrap(), [0; 64]);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let watch = inotify::add_watch(&notify, path, WatchFlags::ATTRIB).unwrap();
        fchmod(&file, Mode::RUSR).unwrap();
        assert_eq!(read(&notify, &mut bytes).unwrap(), 32);
        let words: Vec<i32> = bytes.chunks(4).map(|word| i32::from_ne_bytes(word.try_into().unwrap())).collect();
        const OVERFLOW: i32 = 0x4000;
        const ATTRIB: i32 = 4;
        assert_eq!(words[..8], [-1, OVERFLOW, 0, 0, watch, ATTRIB, 0, 0]);
        assert_eq!(read(&notify, &mut bytes), Err(rustix::io::Errno::AGAIN));
    }
}
