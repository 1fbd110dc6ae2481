//! The hint in an error message when a file of the pager cannot be written for lack of disk space. The pager adds the
//! hint, because the daemon gets the pager's refusals only as text.

use std::io;

/// Returns the text to append to the cause: empty unless disk space is lacking.
pub(super) fn disk_space_hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room there (a node needs some KiB to start, and some for each child), or give the node another run directory (farfork node --run-dir)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_space_gets_a_disk_space_hint() {
        assert!(disk_space_hint(&io::ErrorKind::StorageFull.into()).contains("make room"));
        assert!(disk_space_hint(&io::ErrorKind::QuotaExceeded.into()).contains("--run-dir"));
        assert_eq!(disk_space_hint(&io::ErrorKind::PermissionDenied.into()), "");
    }
}
