//! The cache directory. It holds Python environments. They outlive a run, and can be recreated.

use std::env;
use std::path::PathBuf;

/// Returns `FARFORK_CACHE`, or `~/.cache/farfork`; `None` if neither FARFORK_CACHE nor HOME is set. `scripts/setup.sh` has
/// the same rule.
pub fn find_cache_dir() -> Option<PathBuf> {
    let named = env::var_os("FARFORK_CACHE").map(PathBuf::from);
    named.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/farfork")))
}
