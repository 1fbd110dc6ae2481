//! Reads and follows the output files of children. One inotify instance of the daemon reports when they grow.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farfork_api::limits::OUTPUT_CHUNK_BYTES;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::{ReadWriteFlags, preadv2};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};

use super::ChildStatus;
use crate::async_fd::{FdOwner, watch_readable};

/// Size of the buffer for the events of one read(2), in bytes. Each event has 16 bytes, because it contains no file
/// name.
const EVENT_BYTES: usize = 4096;

/// Notifies followers of files when the files grow.
#[derive(Debug)]
pub(crate) struct OutputWatcher {
    inotify: AsyncFd<FdOwner<OwnedFd>>,
    /// Watched files, by inotify watch descriptor.
    watched: Mutex<HashMap<i32, WatchedFile>>,
}

#[derive(Debug)]
struct WatchedFile {
    growth: Arc<Notify>,
    followers: usize,
}

/// A follower of one file.
struct FileFollower {
    watch: Arc<OutputWatcher>,
    descriptor: i32,
    growth: Arc<Notify>,
}

impl OutputWatcher {
    /// Starts watching; must be called within the runtime.
    ///
    /// # Errors
    /// As inotify_init1(2).
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let watch = Arc::new(Self { inotify: watch_readable(inotify)?, watched: Mutex::default() });
        tokio::spawn(run_event_loop(Arc::downgrade(&watch)));
        Ok(watch)
    }

    fn follow(self: &Arc<Self>, file: &Path) -> io::Result<FileFollower> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let descriptor = inotify::add_watch(&self.inotify.get_ref().0, file, WatchFlags::MODIFY)?;
        let entry = watched.entry(descriptor).or_insert_with(|| WatchedFile { growth: Arc::default(), followers: 0 });
        entry.followers += 1;
        Ok(FileFollower { watch: self.clone(), descriptor, growth: entry.growth.clone() })
    }

    /// Notifies the followers of each file with a queued event. If the queue has overflowed, notifies all. Fails with
    /// `WouldBlock` once the queue is empty.
    fn wake_followers(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = Reader::new(&self.inotify.get_ref().0, &mut buffer);
        loop {
            let event = reader.next()?;
            let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                watched.values().for_each(|file| file.growth.notify_waiters());
            } else if let Some(file) = watched.get(&event.wd()) {
                file.growth.notify_waiters();
            }
        }
    }
}

impl Drop for FileFollower {
    fn drop(&mut self) {
        let mut watched = self.watch.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = watched.get_mut(&self.descriptor) else { return };
        file.followers -= 1;
        if file.followers == 0 {
            watched.remove(&self.descriptor);
            // Fails if the file was removed, which also removes its watch.
            let _ = inotify::remove_watch(&self.watch.inotify.get_ref().0, self.descriptor);
        }
    }
}

/// Waits for events, as long as the watcher is in use.
async fn run_event_loop(watch: Weak<OutputWatcher>) {
    while let Some(watch) = watch.upgrade() {
        let Ok(mut ready) = watch.inotify.readable().await else { return };
        match watch.wake_followers() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => {
                tracing::error!(%error, "the output of children cannot be followed any more");
                return;
            }
        }
    }
}

/// Reads an output file of a child in chunks.
pub(crate) struct OutputReader {
    file: Arc<File>,
    /// Offset of the next chunk.
    offset: u64,
    /// Size of the file at the last check.
    known_bytes: u64,
    /// `None`: reading ends at `known_bytes`.
    follower: Option<(FileFollower, watch::Receiver<ChildStatus>)>,
}

impl OutputReader {
    /// Reads the current contents.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), offset: 0, known_bytes: bytes, follower: None })
    }

    /// Reads the contents until the child has ended.
    pub(crate) fn follow(
        path: &Path,
        watch: &Arc<OutputWatcher>,
        status: watch::Receiver<ChildStatus>,
    ) -> io::Result<Self> {
        let following = Some((watch.follow(path)?, status));
        Ok(Self { follower: following, ..Self::open(path)? })
    }

    /// The next chunk; `None` at the end.
    pub(crate) async fn next_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some((following, status)) = &mut self.follower else {
                return read_chunk(&self.file, &mut self.offset, self.known_bytes).await;
            };
            // Arm both notifications before the read, so that no later event is missed.
            let grown = following.growth.notified();
            tokio::pin!(grown);
            grown.as_mut().enable();
            let has_ended = matches!(*status.borrow_and_update(), ChildStatus::Ended(_));
            self.known_bytes = self.file.metadata()?.len();
            let piece = read_chunk(&self.file, &mut self.offset, self.known_bytes).await?;
            if piece.is_some() || has_ended {
                return Ok(piece);
            }
            tokio::select! {
                () = grown => {}
                changed = status.changed() => if changed.is_err() { return Ok(None) },
            }
        }
    }
}

/// Reads on this thread if the data is in the page cache: handing the read to another thread takes longer than the
/// read. A read that would block runs on a thread that may block.
async fn read_chunk(file: &Arc<File>, offset: &mut u64, bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let left = bytes.saturating_sub(*offset);
    if left == 0 {
        return Ok(None);
    }
    let mut piece = vec![0; OUTPUT_CHUNK_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX))];
    let at_once = preadv2(file, &mut [IoSliceMut::new(&mut piece)], *offset, ReadWriteFlags::NOWAIT);
    let count = match at_once {
        Ok(count) => count,
        // Not in the page cache, or the file system does not support RWF_NOWAIT.
        Err(_) => {
            let (file, offset) = (file.clone(), *offset);
            let reading = tokio::task::spawn_blocking(move || Ok((file.read_at(&mut piece, offset)?, piece)));
            let (count, read) = reading.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))?;
            piece = read;
            count
        }
    };
    piece.truncate(count);
    *offset += count as u64;
    Ok((count > 0).then_some(piece))
}

#[cfg(test)]
mod tests {
    use super::{ChildStatus, OutputReader, OutputWatcher};
    use crate::children::{Exit, ExitRecord};
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::time::Duration;
    use tokio::sync::watch;
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_secs(60);

    fn ended() -> ChildStatus {
        ChildStatus::Ended(ExitRecord {
            limit_met: None,
            by_program: false,
            exit: Exit::Code(0),
            unix_ms: 0,
            pager: None,
        })
    }

    #[tokio::test]
    async fn a_follower_sees_each_piece_and_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stdout");
        let mut writer = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let (status, receiver) = watch::channel(ChildStatus::Running);
        let watch = OutputWatcher::start().unwrap();
        let mut output = OutputReader::follow(&path, &watch, receiver).unwrap();

        for piece in ["one", "two"] {
            writer.write_all(piece.as_bytes()).unwrap();
            let read = timeout(LIMIT, output.next_chunk()).await.unwrap().unwrap();
            assert_eq!(read.as_deref(), Some(piece.as_bytes()));
        }
        assert!(timeout(Duration::from_millis(50), output.next_chunk()).await.is_err(), "it waits");
        writer.write_all(b"last").unwrap();
        status.send_replace(ended());
        assert_eq!(output.next_chunk().await.unwrap().as_deref(), Some(&b"last"[..]));
        assert_eq!(timeout(LIMIT, output.next_chunk()).await.unwrap().unwrap(), None);
        drop(output);
        assert!(watch.watched.lock().unwrap().is_empty(), "nothing is watched without followers");
    }

    #[tokio::test]
    async fn output_ends_at_its_current_end_without_follow() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"so far").unwrap();
        let mut output = OutputReader::open(file.path()).unwrap();
        assert_eq!(output.next_chunk().await.unwrap().as_deref(), Some(&b"so far"[..]));
        assert_eq!(output.next_chunk().await.unwrap(), None);
    }
}
