//! Writes an image under a temporary name: first the pages, then header and checksums. Then renames the file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{Descriptor, ExtentId};
use rustix::fs::FallocateFlags;

use super::ImageError;
use super::format::{ImageHeader, ImageLayout, encode_index};
use super::page_index::PageIndex;

/// Number of pages that are read and written between two checks whether the image was cancelled: 1 MiB.
const CHUNK_PAGES: u64 = 256;

/// A file system of N bytes keeps N / `FREE_FRACTION` bytes free, [`FREE_BYTES_MAX`] at most. Other programs write to the
/// file system, too, and most file systems slow down when they are full.
const FREE_FRACTION: u64 = 20;

/// Maximum number of bytes that stay free. A twentieth of a large disk is more than other programs need, and would prevent
/// images that fit.
const FREE_BYTES_MAX: u64 = 1 << 30;

/// Suffix of the file name until the file is complete.
pub(super) const TEMPORARY_SUFFIX: &str = "new";

/// Progress of an image, shared by the writer and the code that watches or cancels it.
#[derive(Debug, Default)]
pub struct ImageProgress {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

impl ImageProgress {
    /// Returns the bytes of memory that were written, and the total.
    pub fn bytes(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes.load(Ordering::Relaxed))
    }

    /// Cancels the image.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// An unfinished image. Removes the file when it is dropped, unless the image was finished.
struct TemporaryImage<'a> {
    path: &'a Path,
    file: File,
    is_finished: bool,
}

impl Drop for TemporaryImage<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_file(self.path);
        }
    }
}

/// Fills a buffer from an offset of an extent.
pub(crate) type MemoryReader<'a> = &'a dyn Fn(ExtentId, u64, &mut [u8]) -> Result<(), ImageError>;

/// Writes the image of a seed at `path`, completely or not at all. May block for long on memory and file system. `read`
/// must provide all memory that the descriptor lists.
///
/// # Errors
/// [`ImageError`]; no file is left then.
pub(crate) fn write_image(
    read: MemoryReader<'_>,
    descriptor: &Descriptor,
    head: &ImageHeader,
    path: &Path,
    progress: &ImageProgress,
) -> Result<(), ImageError> {
    let failed = |source| ImageError::Write { path: path.to_owned(), source };
    let head = postcard::to_stdvec(head).map_err(|error| failed(io::Error::other(error)))?;
    let pages = PageIndex::from_descriptor(descriptor);
    let layout = ImageLayout::new(head.len() as u64, pages.slot_count());
    progress.total_bytes.store(pages.slot_count() * PAGE_SIZE, Ordering::Relaxed);
    let aside = PathBuf::from(format!("{}.{TEMPORARY_SUFFIX}", path.display()));
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside);
    let file = opened.map_err(failed)?;
    progress.done_bytes.store(0, Ordering::Relaxed);
    let mut temporary_image = TemporaryImage { path: &aside, file, is_finished: false };
    reserve_space(&temporary_image.file, layout.file_bytes(), path)?;

    let checksums = copy_pages(read, &pages, &temporary_image.file, layout, path, progress)?;
    temporary_image.file.write_all_at(&encode_index(&head, &checksums), 0).map_err(failed)?;
    temporary_image.file.sync_data().map_err(failed)?;
    fs::rename(&aside, path).map_err(failed)?;
    temporary_image.is_finished = true;
    // Sync the directory, so that the name is as durable as the contents.
    let directory = path.parent().map_or_else(|| File::open("."), File::open);
    directory.and_then(|directory| directory.sync_all()).map_err(failed)
}

/// Copies all pages, and returns their checksums. `path` is the path of the finished image.
fn copy_pages(
    read: MemoryReader<'_>,
    pages: &PageIndex,
    file: &File,
    layout: ImageLayout,
    path: &Path,
    progress: &ImageProgress,
) -> Result<Vec<u32>, ImageError> {
    let mut checksums = vec![0; pages.slot_count() as usize];
    let mut buffer = vec![0; (CHUNK_PAGES * PAGE_SIZE) as usize];
    for run in pages.copy_order() {
        for done in (0..run.count).step_by(CHUNK_PAGES as usize) {
            if progress.is_cancelled.load(Ordering::Relaxed) {
                return Err(ImageError::Cancelled { path: path.to_owned() });
            }
            let chunk = &mut buffer[..(CHUNK_PAGES.min(run.count - done) * PAGE_SIZE) as usize];
            read(run.extent, (run.first_page + done) * PAGE_SIZE, chunk)?;
            let slot = run.first_slot + done;
            let sums = chunk.chunks_exact(PAGE_SIZE as usize).map(crc32c::crc32c);
            checksums[slot as usize..].iter_mut().zip(sums).for_each(|(checksum, sum)| *checksum = sum);
            let written = file.write_all_at(chunk, layout.page_offset(slot));
            written.map_err(|source| ImageError::Write { path: path.to_owned(), source })?;
            progress.done_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
    }
    Ok(checksums)
}

/// Returns the number of bytes that stay free on a file system of this size.
fn reserved_free_bytes(file_system_bytes: u64) -> u64 {
    (file_system_bytes / FREE_FRACTION).min(FREE_BYTES_MAX)
}

/// Reserves space for the whole file, so that the copy does not fail half-way if the file system fills up.
fn reserve_space(file: &File, bytes: u64, path: &Path) -> Result<(), ImageError> {
    let failed = |errno: rustix::io::Errno| ImageError::Write { path: path.to_owned(), source: errno.into() };
    let room = rustix::fs::fstatvfs(file).map_err(failed)?;
    let free_bytes = room.f_bavail * room.f_frsize;
    let kept_bytes = reserved_free_bytes(room.f_blocks * room.f_frsize);
    if bytes + kept_bytes > free_bytes {
        return Err(ImageError::NoSpace {
            path: path.to_owned(),
            image_bytes: bytes,
            reserved_bytes: kept_bytes,
            free_bytes,
        });
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // A file system without support for fallocate(2) reports ENOSPC later.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_space_reserve_is_a_twentieth_or_one_gibibyte() {
        assert_eq!(reserved_free_bytes(64 << 20), (64 << 20) / 20);
        assert_eq!(reserved_free_bytes(256 << 30), 1 << 30);
    }
}
