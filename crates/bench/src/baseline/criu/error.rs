//! The errors of CRIU and of its commands.

/// Why CRIU cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum CriuError {
    /// It is not installed.
    #[error("criu is not installed: on Debian, `apt-get install criu`, as root")]
    Missing,
    /// It does not work with this kernel.
    #[error(
        "criu does not work here, says `criu check`: {output}; a newer one may (Linux 6.13 and later need CRIU 4.1, which \
         Debian 13 has): put its directory first in PATH"
    )]
    Unusable {
        /// The output of `criu check`.
        output: String,
    },
    /// One of its commands failed.
    #[error("criu {command}: {output}")]
    Command {
        /// `dump`, `restore` …
        command: &'static str,
        /// The first error of its log.
        output: String,
    },
}
