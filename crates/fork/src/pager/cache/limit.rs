//! The page cache's size limit in bytes: a number in a file of the run directory. The daemon writes the file. Each
//! pager reads it at its start and at each `PagerRequest::CacheStats`.

use std::fs;
use std::io;
use std::path::Path;

/// Name of the file in the run directory.
const LIMIT_FILE: &str = "pager.cache";

/// Size limit of a node's cache in bytes, unless its daemon sets another. This is eight times the largest working set
/// (`SET_PAGES_MAX`), and little compared with the memory of machines that run many children.
pub const CACHE_BYTES_MAX_DEFAULT: u64 = 1 << 30;

/// Reads the size limit from the run directory.
pub(in crate::pager) fn read_cache_limit(run_dir: &Path) -> u64 {
    let text = fs::read_to_string(run_dir.join(LIMIT_FILE));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(CACHE_BYTES_MAX_DEFAULT)
}

/// Writes the size limit atomically.
pub(in crate::pager) fn write_cache_limit(run_dir: &Path, bytes_max: u64) -> io::Result<()> {
    let temp_path = run_dir.join("pager.cache.new");
    fs::write(&temp_path, format!("{bytes_max}\n"))?;
    fs::rename(&temp_path, run_dir.join(LIMIT_FILE))
}
